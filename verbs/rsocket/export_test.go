package rsocket

// WhileCopying has f called whenever TryWrite or TryWriteAt copies data without holding the Conn's lock. It is set before they are
// called.
func (c *Conn) WhileCopying(f func()) { c.whileCopying = f }
