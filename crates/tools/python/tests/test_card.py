"""Network cards that ring3 drives for a program in Python."""

import ring3


def test_a_card_says_what_it_is_and_sends() -> None:
    with ring3.Card("sim:virtio-net") as card, card.queue() as queue:
        assert len(card.mac) == 6
        assert card.mtu[0] < 1500 <= card.mtu[1]
        frame = b"\xff" * 6 + card.mac + b"\x08\x00" + bytes(46)
        assert queue.send([frame, bytearray(frame)]) == 2
        assert queue.receive() == []
        assert not queue.wait(0.01)
