package rsocket

// WhileCopying sets a function that is called whenever TryWrite or TryWriteAt copies data without
// the Conn's lock. It must be set before these calls.
func (c *Conn) WhileCopying(f func()) { c.whileCopying = f }
