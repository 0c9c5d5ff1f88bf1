"""From a serve definition to the words of each engine."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from imagebuild.check.runner import Mount
from imagebuild.check.serving import serving_plan, synthetic_acceptance
from imagebuild.errors import InputError
from imagebuild.target.serve import Gsm8k, Model, Serve, Speculative

SPECULATIVE = Speculative("eagle3", "org/draft", "6a2ef20a", 4)


def full(engine: str, **more: object) -> Serve:
    values = {"args": ("--tensor-parallel-size", "8"), "model": Model("org/model", "abc"), "tool_parser": "kimi_k3"}
    return Serve(engine, **{**values, "reasoning_parser": "kimi_r", "speculative": SPECULATIVE, **more})  # type: ignore[arg-type]


def flag(command: tuple[str, ...], name: str) -> str:
    return command[command.index(name) + 1]


def test_vllm_is_told_model_parsers_and_speculation() -> None:
    (command,) = serving_plan(full("vllm"), 8123).commands
    assert command[:5] == ("python3", "-m", "vllm.entrypoints.cli.main", "serve", "org/model")
    assert (flag(command, "--host"), flag(command, "--port")) == ("127.0.0.1", "8123")
    assert (flag(command, "--revision"), flag(command, "--served-model-name")) == ("abc", "org/model")
    assert "--enable-auto-tool-choice" in command
    assert (flag(command, "--tool-call-parser"), flag(command, "--reasoning-parser")) == ("kimi_k3", "kimi_r")
    assert json.loads(flag(command, "--speculative-config")) == {
        "method": "eagle3",
        "model": "org/draft",
        "revision": "6a2ef20a",
        "num_speculative_tokens": 4,
    }
    assert command[-2:] == ("--tensor-parallel-size", "8")


def test_the_frontend_of_dynamo_takes_the_parsers_and_its_worker_none() -> None:
    plan = serving_plan(full("dynamo-vllm"), 8123)
    frontend, worker = plan.commands
    assert frontend[2] == "dynamo.frontend"
    assert worker[2] == "dynamo.vllm"
    assert (flag(frontend, "--tool-call-parser"), flag(frontend, "--reasoning-parser")) == ("kimi_k3", "kimi_r")
    assert not [word for word in worker if "parser" in word or "auto-tool" in word]
    assert json.loads(flag(worker, "--speculative-config"))["model"] == "org/draft"
    assert flag(frontend, "--discovery-backend") == flag(worker, "--discovery-backend") == "file"
    assert plan.environment["DYN_SYSTEM_PORT"] == "8124"
    assert plan.metrics_port == 8124


def test_sglang_has_its_own_words_and_shows_its_counters() -> None:
    (command,) = serving_plan(full("sglang"), 8123, host="0.0.0.0").commands
    assert flag(command, "--model-path") == "org/model"
    assert flag(command, "--host") == "0.0.0.0"
    assert (flag(command, "--tool-call-parser"), flag(command, "--reasoning-parser")) == ("kimi_k3", "kimi_r")
    assert flag(command, "--speculative-algorithm") == "EAGLE3"
    assert flag(command, "--speculative-draft-model-revision") == "6a2ef20a"
    assert flag(command, "--speculative-num-draft-tokens") == "4"
    assert "--enable-metrics" in command


def test_a_site_says_where_models_lie_and_a_folder_has_no_revision() -> None:
    plan = serving_plan(full("vllm"), 8123, folders={"org/model": "/models/m", "org/draft": "/models/d"})
    (command,) = plan.commands
    assert command[4] == "/models/m"
    assert "--revision" not in command
    assert json.loads(flag(command, "--speculative-config"))["model"] == "/models/d"
    assert plan.mounts == (Mount(Path("/models/m"), "/models/m"), Mount(Path("/models/d"), "/models/d"))
    assert plan.served_model == "org/model"


def test_a_command_of_ones_own_is_filled_in() -> None:
    serve = Serve("openai", command=("serve", "{model}", "--at={host}:{port}"), model=Model("m", path="/m.gguf"))
    plan = serving_plan(serve, 8123)
    assert plan.commands == (("serve", "/m.gguf", "--at=127.0.0.1:8123"),)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"args": ("--port", "1")}, "check.serve-argument"),
        ({"args": ("--tool-call-parser=x",)}, "check.serve-argument"),
        ({"model": None}, "check.no-model"),
        ({"model": Model("m", path="models/m")}, "check.no-model"),
    ],
)
def test_contradictions_are_refused(values: dict[str, object], code: str) -> None:
    with pytest.raises(InputError) as caught:
        serving_plan(full("vllm", **values), 8123)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "values", [{"engine": "openai"}, {"engine": "vllm", "command": ("x",)}, {"engine": "openai", "command": ("x",), "tool_parser": "k"}]
)  # fmt: skip
def test_a_command_belongs_to_one_engine(values: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        Serve(**values)  # type: ignore[arg-type]
    assert caught.value.code == "target.serve-command"


@pytest.mark.parametrize(
    ("args", "environment"),
    [
        (("--speculative-config", '{"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.08}'), {}),
        (("--speculative-config", '{"method": "mtp", "synthetic_acceptance_rates":[0.9, 0.8]}'), {}),
        (("--speculative-config.rejection_sample_method", "synthetic"), {}),
        ((), {"SGLANG_SIMULATE_ACC_LEN": "3.1"}),
    ],
)
def test_synthetic_acceptance_is_seen(args: tuple[str, ...], environment: dict[str, str]) -> None:
    assert synthetic_acceptance(Serve("vllm", args), environment)


def test_real_acceptance_is_not_taken_for_synthetic() -> None:
    args = ("--speculative-config", '{"synthetic_acceptance_length": null, "rejection_sample_method": "standard"}')
    assert synthetic_acceptance(Serve("vllm", args), {"SGLANG_SIMULATE_ACC_LEN": "-1", "X": "1"}) is None
    assert synthetic_acceptance(full("vllm", speculative=Speculative("mtp", acceptance="synthetic")), {})


def test_a_model_has_its_own_threshold() -> None:
    asked = Gsm8k(thresholds={"org/small": Decimal("0.6")})
    assert asked.threshold_of("org/small") == Decimal("0.6")
    assert asked.threshold_of("served-name", "org/small") == Decimal("0.6")
    assert asked.threshold_of("org/other") == asked.threshold_of(None) == Decimal("0.90")
