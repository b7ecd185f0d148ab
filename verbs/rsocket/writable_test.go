package rsocket

import "testing"

// TestWritableForWriteAt: who waits for Writable because TryWriteAt cannot go on is not told at once that it can.
func TestWritableForWriteAt(t *testing.T) {
	for _, iwarp := range []bool{false, true} {
		c := &Conn{iwarp: iwarp, peer: connData{credits: defaultQueue}}
		c.out = sender{buf: make([]byte, minBuffer), rooms: []sge{{length: minBuffer}}, limit: defaultQueue}
		writable := 0
		for c.out.slots = range 2 * minQueue {
			if c.ready()&Writable == 0 {
				continue
			}
			if writable++; !c.mayWriteAt(1) {
				t.Errorf("iWARP %v: Writable with %d free slots, which are too few for TryWriteAt", iwarp, c.out.slots)
			}
		}
		if writable == 0 {
			t.Error("it is never Writable")
		}
	}
}
