"""From documentation to English: what goes, what stays, and that nothing is imported on the way."""

from inspect import cleandoc
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.text.prose.markup import extract_prose, reads_as_english
from bertsmith.text.prose.pydocs import extract_documentation, find_packages, read_page


def paragraphs(text: str) -> list[str]:
    return list(extract_prose(cleandoc(text)))


NUMPY = """
    Return the trace of the given matrix, which is the sum
    along its diagonal.

    Parameters
    ----------
    a : (M, N) array_like
        The matrix whose trace is wanted by the caller.
    out : ndarray, optional

    Returns
    -------
    total : scalar
        The sum of all the diagonal elements.

    Examples
    --------
    The following is a very simple example of it:

    >>> trace([[1, 2],
    ...        [3, 4]])
    5

    It is also worth knowing this.
    """


def test_numpy_style() -> None:
    assert paragraphs(NUMPY) == [
        "Return the trace of the given matrix, which is the sum along its diagonal.",
        "The matrix whose trace is wanted by the caller.",
        "The sum of all the diagonal elements.",
        "The following is a very simple example of it:",
        "It is also worth knowing this.",
    ]


GOOGLE = """
    Loads the weights of a model from the given file.

    Args:
        path (str, optional): The file that holds the weights,
            on this machine.
        strict: Whether every name has to be there.

    Returns:
        The model that was loaded from it.

    Example::

        model = load("a")
        # the comment is in a code block and not to be read
    """


def test_google_style() -> None:
    assert paragraphs(GOOGLE) == [
        "Loads the weights of a model from the given file.",
        "The file that holds the weights, on this machine.",
        "Whether every name has to be there.",
        "The model that was loaded from it.",
    ]


SPHINX = """
    Opens :class:`~package.module.Session`, as ``requests`` does [1]_, for the `user <https://example.org>`_.

    :param str name: The name that the *session* is given.
    :type name: str
    :rtype: Session

    .. code-block:: python

        session = open("the name of it is this")

    .. note:: This is only for the **main** thread.

    ======  =======
    a name  a value that is in the table
    ======  =======

    .. [1] A footnote that is left out of the text.
    """


def test_sphinx_style() -> None:
    assert paragraphs(SPHINX) == [
        "Opens Session, as requests does, for the user.",
        "The name that the session is given.",
        "This is only for the main thread.",
    ]


MARKDOWN = """
    # The title of it all

    [![badge](https://a.b/c.svg)](https://a.b) This is a [library](https://a.b) for the masses.

    ```python
    print("this is the code of it")
    ```

    - An item in the list of things.
    - Another one that is
      folded over two lines.
    """


def test_markdown() -> None:
    assert [" ".join(paragraph.split()) for paragraph in paragraphs(MARKDOWN)] == [
        "This is a library for the masses.",
        "An item in the list of things.",
        "Another one that is folded over two lines.",
    ]


@pytest.mark.parametrize(
    ("sentence", "is_english"),
    [
        ("The number of rows that were read.", True),
        ("Whether (or not) it's the user's \"own\" file.", True),
        ("Too short to be.", True),
        ("Too short is.", False),
        ("x = f(a[0], b) -> y in the z", False),
        (r"where \alpha is the angle of it", False),
        ("Paris Tokyo Berlin Madrid Lima", False),
    ],
)
def test_sentences_are_judged(sentence: str, is_english: bool) -> None:
    assert reads_as_english(sentence) is is_english


SOURCE = '''
# Copyright of the authors.
# All rights reserved.
"""Module.
# A comment sign
# in a docstring.
"""
# An explanation
#   of two lines.
x = 1  # no comment of its own
# a single line
import nothing_of_that_name

"""Attribute."""
class A:
    """Class."""
    # Explains
    # the method.
    def f(self):
        """Method."""
        return """Not documentation,
        though long."""
if x:
    try:
        def g():
            "Nested."
    finally:
        pass
add_docstr(A, r"""
    Given \\d to a call.
""")
_shared_doc = """Assigned
to a name."""
template = """Code
or whatever."""
'''


def test_documentation_is_found_in_order_and_nothing_is_run() -> None:
    assert [passage.strip() for passage in extract_documentation(SOURCE)] == [
        "Module.\n# A comment sign\n# in a docstring.",
        "An explanation\n  of two lines.",
        "Attribute.",
        "Class.",
        "Explains\nthe method.",
        "Method.",
        "Nested.",
        "Given \\d to a call.",
        "Assigned\nto a name.",
    ]


def test_a_file_that_cannot_be_parsed_is_an_empty_document(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def {{ template }}:\n    '''This is a sentence of it.'''\n")
    assert read_page(0, "id", tmp_path / "a.py").text == ""


def test_repeated_paragraphs_of_a_module_are_kept_once(tmp_path: Path) -> None:
    method = '    def f{0}(self):\n        """Set the parameters of this estimator."""\n'
    (tmp_path / "a.py").write_text("class A:\n" + method.format(1) + method.format(2))
    assert read_page(0, "id", tmp_path / "a.py").text == "Set the parameters of this estimator."


def test_packages_are_found_by_any_spelling_of_their_name() -> None:
    (package,) = find_packages("pydocs:Typing_Extensions")
    assert package.name == "typing-extensions"
    assert {page.name.rsplit("/")[-1] for page in package.pages} == {"METADATA", "typing_extensions.py"}
    assert package.sha256 is not None and len(package.sha256) == 64


def test_a_package_that_is_not_installed_is_named_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no package nunpy is installed here\. Did you mean 'numpy'\?"):
        find_packages("pydocs:nunpy")


def test_pydocs_finds_everything_installed_but_no_tests() -> None:
    packages = {package.name: package for package in find_packages("pydocs:")}
    assert {"numpy", "torch", "python"} <= set(packages)
    names = [page.name for package in packages.values() for page in package.pages]
    assert not [name for name in names if "/tests/" in name or "/test/" in name]
    assert "argparse.py" in {page.name for page in packages["python"].pages}


def test_the_standard_library_reads_like_english() -> None:
    (python,) = find_packages("pydocs:python")
    (argparse,) = [page for page in python.pages if page.name == "argparse.py"]
    text = read_page(0, "id", argparse.path).text
    assert "This module is an optparse-inspired command-line parsing library that:" in text
    assert ">>>" not in text and "add_argument(" in text
