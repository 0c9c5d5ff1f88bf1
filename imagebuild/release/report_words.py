"""The sentences of a report, each in English and Chinese.  They hold no fact: facts come beside them, as code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Both = tuple[str, str]

COMMANDS: Mapping[str, Both] = MappingProxyType(
    {
        "lock": ("The lock is that of the files:", "锁文件与各文件一致:"),
        "build": ("Build the image; it comes out with the same digest:", "构建镜像,摘要相同:"),
        "recompute": (
            "Recompute what it says of itself: the base's layers a verbatim prefix, ours with exactly the declared files:",
            "重新计算镜像的声明:基础镜像的层原样在前,新增层恰为所声明的文件:",
        ),
        "reproduce": (
            "Build it again under another clock, user, zone and folder, and compare every byte:",
            "在不同的时钟、用户、时区和目录下再次构建并逐字节比较:",
        ),
        "signed": (
            "The published image with its signatures, with the publisher's public key in release.pub:",
            "已发布镜像及其签名,发布者公钥为 release.pub:",
        ),
        "release": (
            "The signed release file beside the lock names this image, with the publisher's public key in release.pub:",
            "锁文件旁的签名发布文件指向此镜像,发布者公钥为 release.pub:",
        ),
        "waiver": ("Judge the waiver:", "检查豁免:"),
    }
)
"""What each command of `ReportFacts.commands` is for."""

UNPROVEN: Mapping[str, Both] = MappingProxyType(
    {
        "lock": ("The lock could not settle", "锁文件未能确定"),
        "guard": ("No layer of the base that was read shows the guarded path", "已读取的基础层中未见受保护的路径"),
        "smoke": ("Smoke steps without a result", "没有结果的冒烟检查步骤"),
        "no-smoke": ("No smoke check is asked for", "未要求冒烟检查"),
        "accuracy": ("No judged accuracy run of this content", "没有该内容的精度评判记录"),
        "bytes": ("Its lines are not shown, only its digests are known", "仅知摘要,未显示其内容"),
        "signature": ("Signatures were not looked up for", "未查询其签名"),
        "expiry": (
            "Whether it has expired was not judged, for want of a day: waiver",
            "未指定日期,故未判断是否过期:豁免",
        ),
        "problem": ("A check could not be made", "有一项检查无法进行"),
    }
)
"""The sentence before each `Unproven.what`."""

HEADINGS: Mapping[str, Both] = MappingProxyType(
    {
        "title": ("Patched image", "打过补丁的镜像"),
        "image": ("Image", "镜像"),
        "changes": ("What is changed", "修改内容"),
        "upstream": ("Upstream", "上游"),
        "checks": ("Checks", "检查"),
        "waiver": ("Waiver", "豁免"),
        "verify": ("How to verify", "如何验证"),
        "unproven": ("What is not proven", "未证明之处"),
    }
)

FIELDS: Mapping[str, Both] = MappingProxyType(
    {
        "image": ("Image", "镜像"),
        "base": ("Unmodified base", "未修改的基础镜像"),
        "content": ("Content id", "内容标识"),
        "lock": ("Lock", "锁文件"),
        "platforms": ("Platforms", "平台"),
        "sku": ("Accelerator", "加速卡"),
    }
)

COLUMNS: Mapping[str, tuple[Both, ...]] = MappingProxyType(
    {
        "changes": (
            ("Path", "路径"),
            ("Kind", "类型"),
            ("Preimage → postimage", "修改前 → 修改后"),
            ("Overlay", "补丁集"),
        ),
        "upstream": (("Overlay", "补丁集"), ("Status", "状态"), ("Links", "链接"), ("It goes when", "何时移除")),
        "checks": (("Check", "检查"), ("Verdict", "结论"), ("Reason", "理由")),
        "waiver": (("Finding", "发现"), ("Severity", "级别"), ("Message", "内容")),
    }
)

KINDS: Mapping[str, Both] = MappingProxyType(
    {
        "file": ("file", "文件"),
        "deletion": ("deleted", "已删除"),
        "symlink": ("symbolic link", "符号链接"),
        "pin": ("pinned wheel", "固定版本的 wheel"),
        "blob": ("binary file", "二进制文件"),
        "stage": ("output of a build stage", "构建阶段的产物"),
        "environment": ("environment default", "环境变量默认值"),
    }
)

VERDICTS: Mapping[str, Both] = MappingProxyType(
    {
        "passed": ("passed", "通过"),
        "failed": ("failed", "失败"),
        "non-inferior": ("non-inferior", "非劣"),
        "inferior": ("inferior", "劣于基准"),
        "inconclusive": ("inconclusive", "无法判定"),
        "invalid": ("invalid", "无效"),
        "not-run": ("not run", "未运行"),
        "not-proven": ("not proven", "未证明"),
        "infrastructure": ("infrastructure fault", "基础设施故障"),
    }
)

PHRASES: Mapping[str, Both] = MappingProxyType(
    {
        "absent": ("absent", "不存在"),
        "nothing": ("Nothing: the image is its base.", "无:镜像即其基础镜像。"),
        "none": ("none named", "未给出"),
        "not-stated": ("not stated", "未说明"),
        "guards": (
            "every path is guarded by the digest of what it replaces; preimages settled:",
            "每个路径均以被替换内容的摘要保护;已确认的修改前摘要:",
        ),
        "no-smoke": ("no evidence of this image is on record", "没有该镜像的记录"),
        "no-accuracy": ("no judged run of this image is on record", "没有该镜像的评判记录"),
        "no-waiver": (
            "No waiver speaks of this target; a release needs one only where its policy asks for it.",
            "没有涉及此目标的豁免;仅在发布策略要求时才需要。",
        ),
        "passed": ("passed", "通过"),
        "refused": ("refused", "被拒绝"),
        "not-cured": ("Not cured by any waiver", "任何豁免都无法解决"),
        "ways-out": ("What can be done", "可行的办法"),
        "blocking": ("blocking", "阻断"),
        "warning": ("warning", "警告"),
        "note": ("note", "提示"),
        "also": ("These follow from the changes", "由上述修改派生"),
    }
)
