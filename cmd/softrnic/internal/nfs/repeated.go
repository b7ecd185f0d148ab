package nfs

import (
	"container/list"
	"context"
	"hash/maphash"
	"net/netip"
	"sync"
)

// repeated is the duplicate request cache (RFC 1813 §4.5): the calls that change the export, from
// their arrival to their end, and the replies of those whose repetition could do harm. REMOVE would
// fail, and WRITE could replace newer data. A client repeats a call, on a new connection too, if
// the old one ended before the reply. Then it waits for the call that has begun, and gets its
// reply.
//
// Calls that have not ended are as many as connections have credits. Replies are bounded per client
// and in all, and the oldest ones go first. Each has less than a kilobyte.
type repeated struct {
	seed maphash.Seed

	mu    sync.Mutex
	calls map[callKey]*answered
	all   *list.List                // of *answered with a reply, oldest first
	of    map[netip.Addr]*list.List // and those of each client
}

// callKey identifies a call. The credentials are not a part of it: clients may renew them.
type callKey struct {
	client         netip.Addr
	xid, procedure uint32
	length         int // of the arguments
	sum            uint64
}

// answered is a call, and its reply when it has ended.
type answered struct {
	key          callKey
	done         chan struct{}
	reply        []byte // nil: the call has not begun, because its connection has ended
	inAll, inOwn *list.Element
}

const (
	maxReplies       = 16384 // kept in all
	maxRepliesOfPeer = 1024  // and of a client's address
)

func newRepeated() *repeated {
	return &repeated{seed: maphash.MakeSeed(), calls: map[callKey]*answered{}, all: list.New(), of: map[netip.Addr]*list.List{}}
}

// do returns the reply of a call that begin begins, or that of an earlier call of the client with
// the same XID, procedure and arguments. It returns nil if ctx ends before. begin returns false if
// ctx ended before the call has begun; otherwise it calls ended with the reply at the call's end.
func (r *repeated) do(ctx context.Context, client netip.Addr, c *rpcCall, begin func(ended func([]byte)) bool) []byte {
	args := c.message[c.args:]
	key := callKey{client, c.xid, c.procedure, len(args), maphash.Bytes(r.seed, args)}
	keep := nfsProcedures[c.procedure].effect == changesOnce
	for {
		r.mu.Lock()
		a := r.calls[key]
		first := a == nil
		if first {
			a = &answered{key: key, done: make(chan struct{})}
			r.calls[key] = a
		}
		r.mu.Unlock()
		if first && !begin(func(reply []byte) { r.ended(a, reply, keep) }) {
			r.ended(a, nil, false)
			return nil
		}
		select {
		case <-a.done:
			if a.reply != nil {
				return a.reply
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// ended notes the end of a call, and keeps its reply if that is wished.
func (r *repeated) ended(a *answered, reply []byte, keep bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer close(a.done)
	a.reply = reply
	if !keep {
		delete(r.calls, a.key)
		return
	}
	own := r.of[a.key.client]
	if own == nil {
		own = list.New()
		r.of[a.key.client] = own
	}
	a.inAll, a.inOwn = r.all.PushBack(a), own.PushBack(a)
	switch {
	case own.Len() > maxRepliesOfPeer:
		r.forget(own.Front().Value.(*answered))
	case r.all.Len() > maxReplies:
		r.forget(r.all.Front().Value.(*answered))
	}
}

// forget forgets the reply of a call. mu is held.
func (r *repeated) forget(a *answered) {
	delete(r.calls, a.key)
	r.all.Remove(a.inAll)
	own := r.of[a.key.client]
	own.Remove(a.inOwn)
	if own.Len() == 0 {
		delete(r.of, a.key.client)
	}
}
