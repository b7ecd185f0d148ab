// attach_or_count is the function thread of struct sr_engine. It leaves the signals of a thread
// that it has attached blocked.
int attach_or_count(int n);
