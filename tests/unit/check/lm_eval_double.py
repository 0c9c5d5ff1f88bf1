"""Stands in for a Python with lm-eval: asks the questions through the given address and writes files of the same form."""

import hashlib
import itertools
import json
import re
import sys
import urllib.request
from pathlib import Path


def main(words: list[str]) -> int:
    if words[0] == "-c":
        print("0.4.13")
        return 0
    value = dict(itertools.pairwise(words))
    model, generation = json.loads(value["--model_args"]), json.loads(value["--gen_kwargs"])
    task = json.loads((Path(value["--include_path"]) / "gsm8k.yaml").read_text())
    text = Path(task["dataset_kwargs"]["data_files"]["test"]).read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    original = len(rows)
    if "--limit" in value:
        rows = rows[: int(value["--limit"])]
    lines, right = [], 0
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for number, row in enumerate(rows):
        prompt = task["doc_to_text"].replace("{{question}}", row["question"])
        body = {"model": model["model"], "messages": [{"role": "user", "content": prompt}], **generation}
        request = urllib.request.Request(model["base_url"], json.dumps(body).encode())
        with opener.open(request) as response:
            text = json.load(response)["choices"][0]["message"]["content"] or ""
        found = re.findall("#### (-?[0-9.,]+)", text)
        correct = bool(found) and found[-1] == row["answer"].split("#### ")[1]
        right += correct
        for name in ("strict-match", "flexible-extract"):
            hashes = {
                f"{key}_hash": hashlib.sha256(str(said).encode()).hexdigest()
                for key, said in (("doc", row), ("prompt", prompt), ("target", row["answer"]))
            }
            answer = found[-1] if found else "[invalid]"
            sample = {"doc_id": number, "filter": name, "exact_match": float(correct), "resps": [[text]]}
            lines.append(json.dumps({**sample, "filtered_resps": [answer], **hashes}))
    score = right / len(rows)
    result = {
        "results": {"gsm8k": {"exact_match,strict-match": score, "exact_match,flexible-extract": score}},
        "n-samples": {"gsm8k": {"original": original, "effective": len(rows)}},
        "model_name": model["model"],
    }
    out = Path(value["--output_path"]) / "double"
    out.mkdir(parents=True)
    (out / "results_2026.json").write_text(json.dumps(result))
    (out / "samples_gsm8k_2026.jsonl").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
