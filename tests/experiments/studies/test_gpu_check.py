"""The checks of a GPU: their logic on a CPU, what they write and when they stop, and what their answers mean."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from probattn.experiments.studies.gpu import captures, check, compiled, kernels, runs, speed
from probattn.experiments.studies.gpu.stage import Scope, Stage
from probattn.inference.io.sealed_files import read_json
from probattn.inference.training import cuda_graph
from probattn.inference.training.run_checkpoints import RunCheckpoints

CPU = Scope("cpu")
NAN = float("nan")


@pytest.mark.parametrize("stage", [*check.STAGES])
def test_each_stage_is_in_order_where_there_is_nothing_to_find(stage, tmp_path):
    said = []
    content = check.run([check.STAGES[stage]], scope=CPU, path=tmp_path / "a.json", minutes=9, say=said.append)
    answers = content["stages"][stage]
    assert answers.keys() == check.STAGES[stage].cases(CPU).keys()
    assert not [each["error"] for each in answers.values() if "error" in each]
    problems = [each for each in check.STAGES[stage].problems(answers) if "the goal is" not in each]
    assert problems == []
    assert len(said) >= len(answers)
    assert read_json(tmp_path / "a.json")["stages"][stage].keys() == answers.keys()


def test_without_a_gpu_the_command_says_so(command, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = command("check-gpu", "--out", tmp_path / "a.json")
    assert (code, err.strip()) == (1, "error: PyTorch finds no GPU here, so there is nothing to check")


def test_the_command_writes_its_answers_and_ends_with_a_verdict(command, tmp_path):
    options = ("--device", "cpu", "--stages", "solvers,attention", "--out", tmp_path / "a.json")
    code, out, _ = command("check-gpu", *options)
    assert code == 0
    assert "solvers: in order" in out
    assert "attention: in order" in out
    assert "not complete: capture, compiled, rollback" in re.sub(r"\s+", " ", out)
    assert read_json(tmp_path / "a.json")["stages"].keys() == {"solvers", "attention"}


def test_the_help_names_the_stages_and_an_unknown_one_is_refused(command, tmp_path):
    _, out, _ = command("check-gpu", "--help")
    words = re.sub(r"[^\w,.]+", " ", out)
    assert f"default all {', '.join(check.STAGES)}." in words
    code, _, err = command("check-gpu", "--device", "cpu", "--stages", "speed", "--out", tmp_path / "a.json")
    assert code == 1
    assert "no stage speed; the stages are capture, solvers" in err


class Stale:
    """Cache of graphs whose replays see the batch that was captured."""

    def __init__(self, warmup=3):
        self.warmup, self.calls, self.captured = warmup, 0, None

    def current_stream(self):
        return nullcontext()

    def __call__(self, function, batches):
        self.calls += 1
        self.captured = batches if self.calls <= self.warmup else self.captured
        return function(self.captured)


def test_replays_of_a_stale_batch_are_found(monkeypatch):
    monkeypatch.setattr(cuda_graph, "make_graph_cache", lambda _: Stale())
    answers = {"softmax, 32": captures.capture_cases(CPU)["softmax, 32"]()}
    assert any("losses of replays of softmax, 32 differ" in each for each in captures.capture_problems(answers))


def test_weights_that_a_repeated_epoch_does_not_restore_are_found(monkeypatch):
    monkeypatch.setattr(RunCheckpoints, "load_weights", lambda *_: None)
    answers = {"kep-svgp": captures.rollback_cases(CPU)["kep-svgp"]()}
    assert any("repeated epoch of kep-svgp changes losses" in each for each in captures.rollback_problems(answers))


def stage(cases):
    return Stage("made up", "?", lambda scope: cases, lambda answers: [])


def test_a_later_call_runs_the_cases_that_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "is_usable", lambda device: False)
    calls = []

    def case(name, error=None):
        def run():
            calls.append(name)
            if error:
                raise RuntimeError(error)
            return {"value": 1.0}

        return run

    options = {"scope": CPU, "path": tmp_path / "a.json", "minutes": 1}
    cases = {"one": case("one"), "two": case("two", "CUDA error: an illegal access\nand more"), "three": case("three")}
    content = check.run([stage(cases)], **options)
    answers = content["stages"]["made up"]
    assert calls == ["one", "two"]
    assert answers["one"]["value"] == 1.0
    assert answers["two"]["error"] == "RuntimeError: CUDA error: an illegal access"
    check.run([stage(cases)], **options)
    assert calls == ["one", "two", "three"]
    said = []
    check.run([stage({"four": case("four")})], **options | {"minutes": 0, "say": said.append})
    assert said == ["time is over; the same command continues"]
    assert calls == ["one", "two", "three"]


def test_errors_are_tried_again_after_a_change_of_the_code_alone(tmp_path, monkeypatch):
    calls = []

    def one():
        calls.append("one")
        raise RuntimeError("not permitted while a stream is captured")

    cases, options = {"one": one, "two": lambda: calls.append("two") or {}}, {"scope": CPU, "path": tmp_path / "a.json"}
    check.run([stage(cases)], minutes=1, **options)
    check.run([stage(cases)], minutes=1, **options)
    assert calls == ["one", "two"]
    monkeypatch.setattr(check, "_source_digest", lambda: "changed")
    check.run([stage(cases)], minutes=1, **options)
    check.run([stage(cases)], minutes=1, **options)
    assert calls == ["one", "two", "one"]


def test_the_digest_is_of_all_packages():
    assert check.is_usable("cpu")
    before = check._source_digest()
    assert before == check._source_digest()
    with pytest.MonkeyPatch.context() as patched:
        read = Path.read_bytes
        patched.setattr(Path, "read_bytes", lambda file: read(file) + b" " * (file.name == "cuda_graph.py"))
        assert check._source_digest() != before


def test_answers_of_another_machine_are_replaced(tmp_path, monkeypatch):
    options = {"scope": CPU, "path": tmp_path / "a.json", "minutes": 1}
    check.run([stage({"one": dict})], **options)
    monkeypatch.setattr(check, "environment", lambda device: {"torch": "another"})
    assert check.run([stage({"two": dict})], **options)["stages"]["made up"].keys() == {"two"}


ERROR = {"error": "RuntimeError: not permitted"}


@pytest.mark.parametrize(
    ("problems", "answers", "words"),
    [
        (captures.capture_problems, {"sgpa, 32": ERROR}, "the step of sgpa, 32 is not captured .* train.capture=false"),
        (
            captures.capture_problems,
            {"cgp, 32": {"worst weight": 0.5, "worst loss": 0.0, "flagged": False}},
            "weights after replays of cgp, 32 differ by 5.0e-01: set train.capture=false",
        ),
        (
            captures.capture_problems,
            {"cgp, 32": {"worst weight": NAN, "worst loss": 0, "flagged": False}},
            "weights .* by nan",
        ),
        (
            captures.capture_problems,
            {"cgp, 32": {"worst weight": 0, "worst loss": NAN, "flagged": False}},
            "losses .* nan",
        ),
        (
            captures.capture_problems,
            {"cgp, bf16-mixed": {"worst weight": 0.0, "worst loss": 0.05, "flagged": False}},
            "losses of replays of cgp, bf16-mixed differ by 5.0e-02",
        ),
        (
            captures.capture_problems,
            {"cgp, 32": {"worst weight": 0.0, "worst loss": 0.0, "flagged": True}},
            "repeated without graphs",
        ),
        (compiled.compiled_problems, {"cgp, 32": ERROR}, "blocks of cgp, 32 are not compiled .* train.compile=false"),
        (compiled.compiled_problems, {"cgp, 32": {"relative difference": 0.01}}, "differ by 1.0e-02 of their norm"),
        (compiled.compiled_problems, {"cgp, 32": {"relative difference": float("nan")}}, "differ by nan"),
        (captures.rollback_problems, {"sgpa, compiled": ERROR}, "set train.compile=false"),
        (captures.rollback_problems, {"sgpa": ERROR}, "set train.capture=false"),
        (captures.rollback_problems, {"sgpa": {"worst": 0.1}}, "repeated epoch of sgpa changes losses by 1.0e-01"),
        (captures.rollback_problems, {"sgpa": {"worst": NAN}}, "changes losses by nan"),
        (kernels.solver_problems, {"4 of 16 × 16": ERROR}, "are not captured"),
        (kernels.solver_problems, {"4 of 16 × 16": {"worst": 1.0, "failed": [0]}}, "wrong by 1.0e"),
        (kernels.solver_problems, {"4 of 16 × 16": {"worst": 0.0, "failed": []}}, "do not tell which of them failed"),
        (
            kernels.attention_problems,
            {"cudnn, bfloat16, 72 tokens, mask": {"finite": False, "worst": 0.0}},
            r"NaN or Inf: call torch.backends.cuda.enable_cudnn_sdp\(False\)",
        ),
        (runs.resume_problems, {"captured, deterministic": {"equal": False, "worst": 0.1}}, "differ by 1.0e-01"),
        (runs.process_problems, {"two processes": ERROR}, "train by one"),
        (
            speed.epoch_problems,
            {
                "bf16, captured, kep-svgp/cifar10": {"seconds": [9.0, 2.0, 2.0]},
                "bf16, captured, kep-svgp/cifar10-softmax": {"seconds": [9.0, 1.0, 1.0]},
                "bf16, kep-svgp/cifar10": {"seconds": [9.0, 4.0, 4.0]},
            },
            "the fastest epochs, bf16, captured, take 2.00 s, 2.00 times softmax attention; the goal is 1.2 s",
        ),
    ],
)
def test_an_answer_that_is_wrong_says_what_to_switch_off(problems, answers, words):
    (found,) = problems(answers)
    assert re.search(words, found)


def test_what_was_left_out_is_no_problem():
    assert kernels.attention_problems({"cudnn, float32, 64 tokens": {"skipped": "no kernel"}}) == []
    assert runs.process_problems({"two processes": {"skipped": "fewer than two GPUs"}}) == []
    assert runs.resume_problems({"captured": {"equal": False, "worst": 0.1}}) == []
