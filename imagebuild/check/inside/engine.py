"""Starts the engine's server with a tiny model of random weights, once for each arm, and asks it over loopback.

For each arm: is it up (`/health`), does it name its model (`/v1/models`), what does it answer to prompts given as token
ids (greedy, one request at a time), and which of the declared proofs its log and its metrics show.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

KEPT = 8 << 20
"""Bytes of an arm's log that are searched and kept, its end."""
POLL = 0.25
STOP = 30.0
"""Seconds between TERM and KILL."""


def write_model(folder: str, config: dict[str, Any]) -> None:
    """config.json, and a tokenizer whose words are its token numbers, since engines want one."""
    size = int(config.get("vocab_size", 256))
    words = {"<unk>": 0, "</s>": 1, **{f"w{number}": number for number in range(2, size)}}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": word, **special} for word, number in list(words.items())[:2]],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"}
    told["model_max_length"] = config.get("max_position_embeddings", 2048)
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer), ("tokenizer_config.json", told)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
            json.dump(value, stream)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def ask(port: int, method: str, path: str, body: Any = None, deadline: float = 120.0) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=deadline)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        answer = connection.getresponse()
        return answer.status, answer.read(KEPT)
    finally:
        connection.close()


def log_of(path: str) -> str:
    with open(path, "rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - KEPT))
        return stream.read().decode("utf-8", "replace")


def completion(port: int, model: str, prompt: list[int], tokens: int) -> dict[str, Any]:
    body = {
        "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "seed": 0, "logprobs": 1,
        "ignore_eos": True, "return_tokens_as_token_ids": True, "return_token_ids": True,
    }  # fmt: skip
    status, data = ask(port, "POST", "/v1/completions", body, 600.0)
    if status != 200:
        return {"status": status, "error": data.decode("utf-8", "replace")[-2000:]}
    choice = json.loads(data)["choices"][0]
    told = choice.get("logprobs") or {}
    shown = list(told.get("tokens") or ())
    ids = choice.get("token_ids")
    if not isinstance(ids, list):
        ids = [int(one[len("token_id:") :]) if str(one).startswith("token_id:") else one for one in shown]
    return {
        "status": status,
        "text": choice.get("text"),
        "finish": choice.get("finish_reason"),
        "tokens": ids,
        "logprobs": [finite(one) for one in told.get("token_logprobs") or ()],
    }


def finite(value: Any) -> Any:
    """JSON knows neither infinities nor what is no number: those are written as words."""
    return value if not isinstance(value, float) or value - value == 0 else repr(value)


def counters(port: int, names: list[str]) -> dict[str, Any]:
    """The sum of each counter over its labels, None for one that the engine does not have."""
    found: dict[str, Any] = dict.fromkeys(names)
    if not names:
        return found
    try:
        status, data = ask(port, "GET", "/metrics")
    except (OSError, http.client.HTTPException):
        return found
    for line in data.decode("utf-8", "replace").splitlines() if status == 200 else ():
        matched = re.match(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{.*\})?\s+([-+0-9.eEinfNa]+)", line)
        for name in names:
            if matched is not None and matched.group(1) in (name, name + "_total"):
                found[name] = (found[name] or 0.0) + float(matched.group(2))
    return found


def wait_ready(child: Any, port: int, deadline: float) -> bool:
    ends = time.monotonic() + deadline
    while time.monotonic() < ends and child.poll() is None:
        try:
            if ask(port, "GET", "/health", deadline=10.0)[0] == 200:
                return True
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(POLL)
    return False


def stop(child: Any) -> None:
    for number, patience in ((signal.SIGTERM, STOP), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        ends = time.monotonic() + patience
        while time.monotonic() < ends:
            try:
                os.killpg(child.pid, 0)  # workers of the server that are still there
            except (ProcessLookupError, PermissionError):
                return
            time.sleep(POLL)


def converse(out: dict[str, Any], asked: dict[str, Any], port: int) -> None:
    out["health"] = ask(port, "GET", "/health")[0]
    status, data = ask(port, "GET", "/v1/models")
    out["models_status"] = status
    out["models"] = [one.get("id") for one in json.loads(data).get("data", ())] if status == 200 else []
    if not out["models"]:
        return
    out["answers"] = [completion(port, out["models"][0], prompt, asked["tokens"]) for prompt in asked["prompts"]]
    names = [one["counter"] for one in asked["proofs"] if one.get("counter")]
    found = counters(port, names)
    # a counter may be written a moment after the answer that it counts
    for _ in range(8 if names else 0):
        if all(found.values()):
            break
        time.sleep(POLL)
        found = counters(port, names)
    out["counters"] = found


def run_arm(arm: dict[str, Any], asked: dict[str, Any], model: str, log: str) -> dict[str, Any]:
    port, began = free_port(), time.monotonic()
    filled = {"{model}": model, "{port}": str(port), "{python}": sys.executable}
    command = []
    for word in asked["command"]:
        for mark, value in filled.items():
            word = word.replace(mark, value)
        command.append(word)
    environment = {name: text for name, text in os.environ.items() if name not in arm["unset"]}
    environment.update(asked["env"])
    for name in arm["unset"]:
        environment.pop(name, None)
    environment.update(arm["env"])
    out: dict[str, Any] = {"name": arm["name"], "command": command, "env": arm["env"], "ready": False, "answers": []}
    try:
        with open(log, "wb") as stream:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment, start_new_session=True
            )
    except OSError as error:
        return {**out, "error": f"{command[0]}: {error}"}
    try:
        out["ready"] = wait_ready(child, port, asked["ready"])
        out["seconds_to_ready"] = round(time.monotonic() - began, 3)
        if out["ready"]:
            converse(out, asked, port)
        out["exit"] = child.poll()
    except (OSError, ValueError, KeyError, IndexError, http.client.HTTPException) as error:
        out["error"] = f"{type(error).__name__}: {error}"[:2000]
        out["exit"] = child.poll()
    finally:
        stop(child)
    said = log_of(log)
    out["logs"] = {}
    for one in asked["proofs"]:
        if one.get("log"):
            lines = [line for line in said.splitlines() if re.search(one["log"], line)]
            out["logs"][one["log"]] = {"count": len(lines), "lines": [line[:500] for line in lines[:3]]}
    if not out["ready"] or out.get("error"):
        out["tail"] = said[-6000:]
    out["seconds"] = round(time.monotonic() - began, 3)
    return out


def main() -> int:
    with open(os.path.join(os.environ["IMAGEBUILD_IN"], "request.json"), encoding="utf-8") as stream:
        request = json.load(stream)
    asked, place = request["arguments"], os.environ["IMAGEBUILD_ANSWER"]
    answer: dict[str, Any] = {"tokens": asked["tokens"], "prompts": asked["prompts"], "arms": []}
    with tempfile.TemporaryDirectory() as model:
        write_model(model, asked["config"])
        for arm in asked["arms"]:
            log = os.path.join(os.environ["IMAGEBUILD_OUT"], f"server-{arm['name']}.log")
            answer["arms"].append(run_arm(arm, asked, model, log))
            with open(place + ".part", "w", encoding="utf-8") as stream:
                json.dump(answer, stream, indent=1, sort_keys=True)
            os.replace(place + ".part", place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
