package ddp

// QueueAt awaits message msn, which takes 2^32 messages otherwise.
func QueueAt(msn uint32) Queue { return Queue{done: msn - 1} }
