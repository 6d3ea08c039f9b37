from porter.bench.footprint.tape import INPUT, Tape


def test_a_storage_is_alive_until_its_last_reader_and_longer_where_backward_reads_it() -> None:
    tape = Tape(100)
    y = tape.write("y", 10, (INPUT,), temporary=5)  # not kept
    z = tape.write("z", 20, (y,), saves=("result",))
    tape.write("w", 1, (z,), saves=(z,))
    assert tape.saved_storages() == {"z": 20}
    assert tape.cost().saved == 20
    assert tape.cost().forward_peak == 100 + 10 + 20  # y and z, while z is made
    assert Tape(1).sizes == {INPUT: 1}


def test_gradients_replace_each_other_and_what_was_kept_is_released() -> None:
    tape = Tape(100)
    y = tape.write("y", 10, (INPUT,), saves=(INPUT,), parameter_bytes=7)
    tape.write("w", 1000, (y,), saves=(y,))
    # Last node: kept x 100 and y 10, gradients of w 1000 and y 10. First: kept x, gradients of y and x, parameters.
    assert tape.cost().backward_peak == max(100 + 10 + 1000 + 10, 100 + 10 + 100 + 7)
    assert tape.cost().parameter_bytes == 7


def test_a_sum_hands_its_gradient_on_and_a_second_one_is_added_to_it() -> None:
    tape = Tape(100)
    branch = tape.write("branch", 100, (INPUT,), saves=(INPUT,))
    tape.write("sum", 100, (INPUT, branch), hands_on=True)
    # One gradient for sum, x and branch; then x's own, which is new while the shared one stands for branch.
    assert tape.cost().backward_peak == 100 + 100 + 100


def test_gradients_that_are_ready_take_no_more_in_backward() -> None:
    made_early, made_late = Tape(10), Tape(10)
    kept = made_early.write("d_weight", 50, ())
    made_early.write("loss", 4, (INPUT, kept), saves=(kept,), grads=(INPUT,), ready=True, parameter_bytes=50)
    made_late.write("loss", 4, (INPUT,), saves=(INPUT,), parameter_bytes=50)
    assert made_early.cost().backward_peak == 50 + 4
    assert made_late.cost().backward_peak == 10 + 4 + 10 + 50


def test_two_storages_of_a_name_are_two() -> None:
    tape = Tape(1)
    assert tape.write("a", 1, ()) != tape.write("a", 2, ())
