package nfs

import (
	"context"
	"crypto/sha256"
	"net/netip"
	"sync"
)

// repeated has the replies of the last calls whose repetition would have another result, such as
// REMOVE. A client repeats a call on a new connection if the old one ended before the reply.
type repeated struct {
	mu    sync.Mutex
	calls map[callKey]*answered
	order []callKey // oldest first
}

type callKey struct {
	client netip.Addr
	call   [sha256.Size]byte // of the message, which has the XID
}

type answered struct {
	done  chan struct{}
	reply []byte
}

// maxRepeated is the number of replies that are kept. Each has less than a kilobyte.
const maxRepeated = 4096

func newRepeated() *repeated { return &repeated{calls: map[callKey]*answered{}} }

// do returns the reply of an earlier call with the same message, or that of f.
func (r *repeated) do(ctx context.Context, client netip.Addr, message []byte, f func() []byte) []byte {
	key := callKey{client, sha256.Sum256(message)}
	r.mu.Lock()
	if a := r.calls[key]; a != nil {
		r.mu.Unlock()
		select {
		case <-a.done:
			return a.reply
		case <-ctx.Done():
			return nil
		}
	}
	a := &answered{done: make(chan struct{})}
	r.calls[key] = a
	r.order = append(r.order, key)
	if len(r.order) > maxRepeated {
		delete(r.calls, r.order[0])
		r.order = r.order[1:]
	}
	r.mu.Unlock()
	a.reply = f()
	close(a.done)
	if a.reply == nil { // it was not served
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.calls[key] == a {
			delete(r.calls, key)
		}
	}
	return a.reply
}
