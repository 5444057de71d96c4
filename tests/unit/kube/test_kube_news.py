"""What wakes the reconciler, and what doesn't."""

import pytest
from covey_api.kinds import ObjectKey
from covey_api.node import Node
from covey_controller.stores.kube.mirror import Change, Entry
from covey_controller.stores.kube.news import News

KEY = ObjectKey("Node", "", "a")


def change(version: int | None) -> Change:
    node = Node.model_validate({"metadata": {"name": "a"}})
    return Change(KEY, None, None if version is None else Entry("u1", version, node))


@pytest.mark.parametrize(
    ("seen", "written", "is_news"), [(5, 5, False), (6, 5, True), (None, 5, True), (None, None, False), (4, 5, False)]
)
def test_own_write_is_no_news_and_what_others_wrote_after_it_is(
    seen: int | None, written: int | None, is_news: bool
) -> None:
    news = News()
    with news.own_write(KEY) as write:
        news.observe(change(seen))
        assert not news.changed.is_set()
        if written is None:
            write.removed()
        else:
            write.version = written
    assert news.changed.is_set() == is_news


def test_write_that_failed_leaves_what_was_seen_as_news() -> None:
    news = News()
    with news.own_write(KEY):
        news.observe(change(5))
    assert news.changed.is_set()


def test_change_by_others_wakes_at_once() -> None:
    news = News()
    news.observe(change(5))
    assert news.changed.is_set()
