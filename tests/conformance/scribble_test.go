//go:build !race

package conformance

// The application deliberately races with the device here, which the race detector would report.

import (
	"bytes"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestMemoryChangesWhileSent: the application writes to memory while it is being sent. The receiver
// gets a mixture of old and new bytes, and drops no packet for a wrong ICRC.
func TestMemoryChangesWhileSent(t *testing.T) {
	bothWays(t, memoryChangesWhileSent)
}

func memoryChangesWhileSent(t *testing.T, direct bool) {
	p := newPair(t, pairOptions{direct: direct})
	defer p.close()
	var scribbler sync.WaitGroup
	stop := make(chan struct{})
	scribbler.Go(func() {
		for i := byte(0); ; i++ {
			select {
			case <-stop:
				return
			default:
				copy(p.am.Buf(), bytes.Repeat([]byte{i}, pairMemory))
			}
		}
	})
	for id := range uint64(500) {
		p.a.post(&verbs.SendWR{WRID: id, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{p.am.SGE(0, pairMemory)}, RemoteAddr: p.bm.Addr(), RKey: p.bm.RKey()})
		p.a.succeed(id)
	}
	close(stop)
	scribbler.Wait()
	if n := p.b.counter("icrc_errors"); n != 0 {
		t.Errorf("the peer found %d wrong ICRCs", n)
	}
}
