"""Pages as people write them: other wording, other case, other order of words; made up for these tests."""

PAGE = """\
# Engine patch waiver - PR #310

## config covered

- Master entry: `engine-fp8-mi355x-vllm-mtp` in `configs/amd-master.yaml`
- Pinned image: `vllm/vllm-openai-rocm:nightly-12ab`
- Script: `benchmarks/fix_engine.sh`

## What Is Patched

`fix_engine.sh` edits three files of the installed engine.

| Upstream PR/issue | What it changes | Notes |
|---|---|---|
| engine #41 | stride of the cache | offline diff |
| helper #7 / #9 | kernel build | needs a compiler |
| `helper==2.1` | pip install | dependency pin |

## WHY the stock image can't run this

The stock image stops with a memory fault while graphs are captured, because the stride overflows.

## Upstream PRs and links

- engine: https://github.com/engine-project/engine/pull/41
- helper: https://github.com/helper-project/helper/pull/7, https://github.com/helper-project/helper/pull/9

## Removal Plan

Retire `fix_engine.sh` and its call in `run_mtp.sh` once a nightly carries #41 and #7, and delete this
waiver in the same change.
"""

CHINESE = """\
# 引擎补丁豁免 PR #310

## 适用范围

- 镜像: `vllm/vllm-openai-rocm:nightly-12ab`

## 补丁内容

| 上游 PR | 内容 | 说明 |
|---|---|---|
| engine #41 | 缓存步长 | 离线补丁 |

## 为什么未修改的镜像无法运行

捕获计算图时发生内存错误,因为步长溢出。

## 上游链接

- https://github.com/engine-project/engine/pull/41

## 移除方案

待上游镜像包含 #41 之后,删除 `fix_engine.sh` 以及本豁免。
"""
