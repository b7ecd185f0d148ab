package rsocket

import "testing"

// TestWritableForWriteAt: the Conn is Writable only if TryWriteAt can make progress. A program can
// therefore wait for Writable after TryWriteAt.
func TestWritableForWriteAt(t *testing.T) {
	for _, iwarp := range []bool{false, true} {
		c := &Conn{iwarp: iwarp, peer: connData{credits: defaultQueue}}
		c.out = sender{buf: make([]byte, minBuffer), targets: []sge{{length: minBuffer}}, limit: defaultQueue}
		writable := 0
		for c.out.slots = range 2 * minQueue {
			if c.ready()&Writable == 0 {
				continue
			}
			if writable++; !c.canWriteAt(1) {
				t.Errorf("iWARP %v: Writable with %d free slots, which are too few for TryWriteAt", iwarp, c.out.slots)
			}
		}
		if writable == 0 {
			t.Error("the Conn is never Writable")
		}
	}
}
