package fabric

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"sort"
)

// sent is what a host has sent.
type sent struct{ frames, digest uint64 }

// sending is what a host had sent before a frame, and which event has sent that.
type sending struct {
	limit
	number uint64 // among the frames of the shard
	before sent
}

// keepsSent is the time, in lookaheads, for which hosts remember what they have sent. A shard is
// one at most ahead of a mark that it learns of. The other one is time for later marks, which take
// the place of that mark.
const keepsSent = 2

// remember is called before the host sends a frame.
func (h *Host) remember() {
	s := h.shard
	if !s.f.apart {
		return
	}
	if n := len(h.recent); n == cap(h.recent) {
		since := s.now - keepsSent*s.f.lookahead
		if old := sort.Search(n, func(i int) bool { return h.recent[i].at >= since }); old >= n/2 {
			h.recent = h.recent[:copy(h.recent, h.recent[old:])]
		}
	}
	s.sends++
	h.recent = append(h.recent, sending{s.here(), s.sends, sent{h.sentFrames, h.digest}})
}

// mark is a call of Host.Mark.
type mark struct {
	limit
	of    *shard
	sends uint64 // by the shard before it
}

// resolve finds what the shard's hosts had sent at a mark. Everything before that has happened.
func (s *shard) resolve(m *mark) {
	if m == s.resolved {
		return
	}
	s.resolved = m
	for _, h := range s.hosts {
		h.marked = h.sentUntil(m)
	}
}

// sentUntil returns what a host had sent at a mark that is not long ago.
func (h *Host) sentUntil(m *mark) sent {
	after := sort.Search(len(h.recent), func(i int) bool {
		r := &h.recent[i]
		if h.shard == m.of {
			return r.number > m.sends
		}
		return m.isBefore(r.limit)
	})
	if after < len(h.recent) {
		return h.recent[after].before
	}
	return sent{h.sentFrames, h.digest}
}

// Mark remembers what all hosts have sent until now, for Marked, instead of at an earlier time. A
// function or a process of the host calls it. Of hosts of several workers that call it at one
// instant, any counts.
func (h *Host) Mark() {
	f, s := h.f, h.shard
	m := &mark{s.here(), s, s.sends}
	if !f.apart {
		f.mark.Store(m)
		for _, s := range f.shards {
			s.resolved = m
		}
		for _, h := range f.hosts {
			h.marked = sent{h.sentFrames, h.digest}
		}
		return
	}
	for {
		last := f.mark.Load()
		if last != nil && m.isBefore(last.limit) || f.mark.CompareAndSwap(last, m) {
			return
		}
	}
}

// Marked returns the digest as it was at the last Mark, by virtual time, or "" if there was none.
func (f *Fabric) Marked() string {
	f.mustBeAlone("Fabric.Marked")
	if f.mark.Load() == nil {
		return ""
	}
	return f.digest(func(h *Host) sent { return h.marked })
}

// Digest returns a number that says whether two runs were the same: it depends on each frame that a
// host has sent, and on its time.
func (f *Fabric) Digest() string {
	f.mustBeAlone("Fabric.Digest")
	return f.digest(func(h *Host) sent { return sent{h.sentFrames, h.digest} })
}

func (f *Fabric) digest(of func(h *Host) sent) string {
	d := fnv.New64a()
	var b [16]byte
	for _, h := range f.hosts {
		s := of(h)
		binary.LittleEndian.PutUint64(b[:], s.frames)
		binary.LittleEndian.PutUint64(b[8:], s.digest)
		_, _ = d.Write(b[:])
	}
	return fmt.Sprintf("%016x", d.Sum64())
}
