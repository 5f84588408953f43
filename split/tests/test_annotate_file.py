"""The file of questions that a person edits, and the judge of the answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from border import OPEN, Border, number, pointer, reads
from ring3_split.annotate.check import Judge
from ring3_split.annotate.definitions import Definitions
from ring3_split.annotate.file import load
from ring3_split.annotate.survey import Survey
from ring3_split.errors import Refusal
from ring3_split.model import Layout, Member, Shape


def rings(*more: Member) -> Border:
    """struct nic with an array of rings, whose length nobody knows."""
    border = Border(pointer("ring", "ring"), number("rings", 16), *more)
    border.layouts["ring"] = Layout(
        "ring", "d/nic.h", 30, 16, (number("count"), pointer("next", "ring"))
    )
    border.accesses[OPEN] += reads("ring.count", base="field nic.ring")
    return border.sees(Shape("index", "field nic.ring", 13, "i"))


def written(path: Path, border: Border) -> str:
    file = load(path)
    file.update(border.look(file.answers()), "by hand")
    file.save()
    return path.read_text()


def answered(path: Path, key: str, answer: str) -> None:
    head, _, tail = path.read_text().partition(f'[questions."{key}"]')
    tail = tail.replace('answer = ""', f'answer = "{answer}"', 1)
    path.write_text(f'{head}[questions."{key}"]{tail}')


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "nic.annotations.toml"


def test_a_new_file_has_a_table_for_each_question(path: Path) -> None:
    written(path, rings())
    question = load(path).questions["nic.ring"]
    assert question.unwrap() == {
        "where": "d/nic.h:7",
        "type": "struct ring *",
        "question": "How many elements does it point to?",
        "known": ["d/a.c:13: indexed with i"],
        "allowed": ["single", "array(LENGTH)", "bytes(LENGTH)", "handle", "omit"],
        "answer": "",
    }


def test_what_was_inferred_stands_with_its_evidence(path: Path) -> None:
    written(path, rings())
    inferred = load(path).document["inferred"].unwrap()
    assert inferred[f"{OPEN}(nic)"]["is"] == "single"
    assert "d/a.c:11" in inferred[f"{OPEN}(nic)"]["why"]


def test_another_run_changes_nothing(path: Path) -> None:
    first = written(path, rings())
    assert written(path, rings()) == first


def test_an_answer_and_a_comment_survive_another_run(path: Path) -> None:
    written(path, rings())
    answered(path, "nic.ring", "array(rings)")
    path.write_text(
        path.read_text().replace(
            '[questions."nic.ring"]', '# checked with the data sheet\n[questions."nic.ring"]'
        )
    )
    text = written(path, rings(pointer("data", "void", "void *")))
    assert 'answer = "array(rings)"' in text
    assert "# checked with the data sheet\n" in text
    assert load(path).questions["nic.data"]["answer"] == ""


def test_a_question_that_is_not_asked_any_more_is_marked_and_kept(path: Path) -> None:
    written(path, rings())
    answered(path, "nic.ring", "array(rings)")
    written(path, Border(number("rings")))
    question = load(path).questions["nic.ring"]
    assert (question["needed"], question["answer"]) == (False, "array(rings)")


def test_a_question_that_comes_back_is_not_marked_any_more(path: Path) -> None:
    written(path, rings())
    written(path, Border(number("rings")))
    written(path, rings())
    assert "needed" not in load(path).questions["nic.ring"]


def test_a_table_that_overrules_what_is_inferred_is_kept(path: Path) -> None:
    written(path, Border(pointer("napi", "napi_struct")))
    with path.open("a") as file:
        file.write('\n[questions."nic.napi"]\nanswer = "omit"\n')
    written(path, Border(pointer("napi", "napi_struct")))
    assert load(path).questions["nic.napi"].unwrap() == {"answer": "omit"}


def test_the_line_of_an_answer_is_found(path: Path) -> None:
    text = written(path, rings())
    line = load(path).line("nic.ring")
    assert text.splitlines()[line - 1] == 'answer = ""'


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("version = 1\n[questions", "not a TOML file"),
        ("version = 9\n", "version 9 of annotations, this program knows 1"),
        ("version = 1\nquestions = 3\n", "`questions` is not a table"),
        ('version = 1\n[questions."a.b"]\nanswer = 3\n', ":3: the answer to a.b is not a string"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(
    path: Path, text: str, wrong: str
) -> None:
    path.write_text(text)
    with pytest.raises(Refusal) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert wrong in str(caught.value)


@pytest.fixture
def definitions(tmp_path: Path) -> Definitions:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/nic.h").write_text(
        "#define NIC_RINGS 4\nenum { NIC_QUEUES = 2 };\nstruct frame {\n\tint n;\n};\n"
    )
    return Definitions(tmp_path, ("d",))


def complaint(found: Survey, definitions: Definitions, answer: str, key: str = "nic.ring") -> str:
    return Judge(found, definitions).complaint(key, answer)


@pytest.mark.parametrize(
    "answer",
    [
        "array(rings)",
        "array(4)",
        "array(NIC_RINGS * 2)",
        "array(ring->count)",
        "array(nic_send(rings))",
        "array(nic_send(this, ring))",
        "single",
        "handle",
        "omit",
        "array(rings, struct ring)",
        "array(rings / sizeof(struct frame))",
    ],
)
def test_an_answer_that_fits_is_accepted(definitions: Definitions, answer: str) -> None:
    assert complaint(rings().look(), definitions, answer) == ""


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("arrays(rings)", "is none of: single"),
        ("array(ringz)", "`ringz` is no member of struct nic"),
        ("array(ring)", "`ring` of struct nic is not a number: struct ring *"),
        ("array(ring->counts)", "`counts` is no member of struct ring"),
        ("array(rings->count)", "`rings` has no members"),
        ("array(nic_send(rang))", "`rang` is nothing that could be passed here"),
        ("array(count_rings(rings))", "`count_rings` is no function of the driver"),
        ("array(rings, struct wrong)", "struct wrong is not defined anywhere"),
        ("array(sizeof(struct wrong))", "struct wrong is not defined anywhere"),
        ("string", "`string` does not fit `struct ring *`"),
        ("array()", "a number or a name is missing"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_with_the_reason(
    definitions: Definitions, answer: str, wrong: str
) -> None:
    assert wrong in complaint(rings().look(), definitions, answer)


def test_a_pointer_without_a_type_needs_one(definitions: Definitions) -> None:
    found = Border(pointer("data", "void", "void *")).look()
    assert "does not say what it points to" in complaint(found, definitions, "single", "nic.data")
    assert complaint(found, definitions, "single(struct frame)", "nic.data") == ""


def test_a_length_of_a_parameter_is_over_the_parameters(definitions: Definitions) -> None:
    found = Border().takes(("n", "u32"), ("data", "void *")).look()
    assert complaint(found, definitions, "bytes(n)", f"{OPEN}(data)") == ""
    assert "`m` is no parameter" in complaint(found, definitions, "bytes(m)", f"{OPEN}(data)")
    assert "`data` is a pointer, not a number" in complaint(
        found, definitions, "bytes(data)", f"{OPEN}(data)"
    )


def test_a_function_of_the_driver_can_be_kept_in_the_kernel_unasked(
    path: Path, definitions: Definitions
) -> None:
    written(path, rings())
    with path.open("a") as file:
        file.write(f'\n[questions."{OPEN}"]\nanswer = "kernel"\n')
    text = written(path, rings(pointer("data", "void", "void *")))
    assert load(path).questions[OPEN] == {"answer": "kernel"}
    assert load(path).questions["nic.ring"]["needed"] is False
    assert written(path, rings(pointer("data", "void", "void *"))) == text
    assert rings().look(load(path).answers()).border.entries == []
    assert complaint(rings().look(), definitions, "kernel", OPEN) == ""
    assert "is none of: kernel" in complaint(rings().look(), definitions, "user", OPEN)


def test_an_answer_to_what_does_not_exist_is_refused(definitions: Definitions) -> None:
    assert "nothing of this name crosses" in complaint(
        rings().look(), definitions, "kernel", "d/a.c:nic_opne"
    )
