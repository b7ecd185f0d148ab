package ddp

// QueueAt returns a queue that expects message msn next. Otherwise a test needs up to 2^32
// messages.
func QueueAt(msn uint32) Queue { return Queue{done: msn - 1} }
