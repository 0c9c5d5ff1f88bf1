"""The fixed prose of the pages, once in English and once in Chinese.  Placeholders take code spans only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Words:
    """The sentences of one language."""

    title: str
    config_entry: str
    target: str
    base: str
    image: str
    not_published: str
    columns: tuple[str, str, str, str]
    record_columns: tuple[str, str, str, str]
    absent: str
    no_link: str
    new_file: str
    nothing: str
    stands_for: str
    derived_intro: str
    switch: str
    evidence_given: str
    base_runs: str
    no_base_runs: str
    without_link: str
    overlay: str
    upstream_status: str
    status_unknown: str
    gate: str
    numerics: str
    no_accuracy: str
    then_deleted: str
    waiver_goes: str
    expires: str
    rendered_from: str
    lock: str
    content_id: str
    image_digest: str
    signature: str
    no_signature: str
    kinds: Mapping[str, str] = field(hash=False)
    derived: Mapping[str, str] = field(hash=False)
    results: Mapping[str, str] = field(hash=False)
    states: Mapping[str, str] = field(hash=False)


ENGLISH = Words(
    title="Inference-engine patch waiver, PR #{number}",
    config_entry="Config",
    target="Target",
    base="Unmodified upstream image",
    image="Patched image",
    not_published="published nowhere; it is a local layout",
    columns=("Path", "Preimage → postimage", "Upstream", "Note"),
    record_columns=("Check", "Result", "Image", "Evidence"),
    absent="absent",
    no_link="none",
    new_file="new file",
    nothing="Nothing: the image is its base.",
    stands_for="stands for",
    derived_intro="These follow from the changes above and change with them:",
    switch="The change is behind {env}: on with {on}, off with {default} and when unset.",
    evidence_given="What the author gives as evidence:",
    base_runs="On the unmodified image of {target}:",
    no_base_runs="No run on the unmodified image of {target} is on record.",
    without_link="No upstream pull request or issue",
    overlay="Overlay",
    upstream_status="upstream status",
    status_unknown="not stated",
    gate="Gate of {target}: GSM8K at least {threshold}, and within {margin} points of the unmodified image.",
    numerics="{overlay} claims of its numerics: {claim}.",
    no_accuracy="No accuracy run of content {content} is on record.",
    then_deleted="Then these are deleted, with every call site:",
    waiver_goes="this waiver: {pages}",
    expires="The waiver is good until {date}.",
    rendered_from="Rendered from the lock of",
    lock="lock",
    content_id="content id",
    image_digest="image",
    signature="signature: {file}, for whoever has the publisher's key to verify",
    no_signature="signature: none on record",
    kinds={
        "file": "file", "deletion": "deleted", "symlink": "symbolic link", "pin": "pinned wheel", "blob": "binary file",
        "stage": "output of a build stage", "environment": "environment default",
    },
    derived={"record": "list of installed files", "bytecode": "stale bytecode, removed", "provenance": "note of the builder", "sbom": "SBOM of the changes"},
    results={"PASSED": "passed", "WARNED": "passed with warnings", "FAILED": "failed"},
    states={"open": "open", "draft": "draft", "merged": "merged", "closed": "closed"},
)  # fmt: skip

CHINESE = Words(
    title="推理引擎补丁豁免,PR #{number}",
    config_entry="配置",
    target="目标",
    base="未修改的上游镜像",
    image="打过补丁的镜像",
    not_published="未发布,仅为本地布局",
    columns=("路径", "修改前 → 修改后", "上游", "说明"),
    record_columns=("检查", "结果", "镜像", "证据"),
    absent="不存在",
    no_link="无",
    new_file="新文件",
    nothing="无:镜像即其基础镜像。",
    stands_for="即",
    derived_intro="以下条目由上述修改派生,并随之变化:",
    switch="该修改由 {env} 控制:设为 {on} 时开启,设为 {default} 或未设置时关闭。",
    evidence_given="作者给出的证据:",
    base_runs="在 {target} 的未修改镜像上:",
    no_base_runs="没有在 {target} 的未修改镜像上运行的记录。",
    without_link="没有上游 PR 或 issue",
    overlay="补丁集",
    upstream_status="上游状态",
    status_unknown="未说明",
    gate="{target} 的门槛:GSM8K 不低于 {threshold},且与未修改镜像相差不超过 {margin} 个百分点。",
    numerics="{overlay} 对数值的声明:{claim}。",
    no_accuracy="没有内容 {content} 的精度运行记录。",
    then_deleted="届时删除以下文件及所有调用处:",
    waiver_goes="本豁免:{pages}",
    expires="本豁免有效期至 {date}。",
    rendered_from="生成自以下目标的锁文件:",
    lock="锁文件",
    content_id="内容标识",
    image_digest="镜像",
    signature="签名:{file},可用发布者的公钥验证",
    no_signature="签名:无记录",
    kinds={
        "file": "文件", "deletion": "已删除", "symlink": "符号链接", "pin": "固定版本的 wheel", "blob": "二进制文件",
        "stage": "构建阶段的产物", "environment": "环境变量默认值",
    },
    derived={"record": "已安装文件清单", "bytecode": "过期字节码,已移除", "provenance": "构建器的说明", "sbom": "改动的 SBOM"},
    results={"PASSED": "通过", "WARNED": "通过但有警告", "FAILED": "失败"},
    states={"open": "开放", "draft": "草稿", "merged": "已合并", "closed": "已关闭"},
)  # fmt: skip
