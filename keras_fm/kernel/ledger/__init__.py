"""What was spent, and on what: the record that a crash, a copy or a hostile
file must not change, and the sentence that is made of it."""
