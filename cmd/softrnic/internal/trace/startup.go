package trace

import (
	"bytes"
	"fmt"

	"github.com/softrnic/softrnic/rdmatransport/mpa"
)

var requestKey, replyKey = []byte("MPA ID Req Frame"), []byte("MPA ID Rep Frame")

// startUp analyses the first bytes of a direction: MPA's request or reply (RFC 5044 §7.1), or
// another protocol.
func (a *analysis) startUp(s *stream, side int, b []byte) {
	h, o := &s.half[side], &s.half[1-side]
	h.held0 = append(h.held0, b...)
	n := min(len(h.held0), len(requestKey))
	if !bytes.Equal(h.held0[:n], requestKey[:n]) && !bytes.Equal(h.held0[:n], replyKey[:n]) {
		if s.iwarp {
			a.report(wrong, nil, a.ev.number, "the other side has sent MPA's frame, and this is none")
		}
		if isTLS(h.held0) {
			a.encrypted(s)
		}
		h.phase, h.held0 = unfollowed, nil
		return
	}
	frame, size, err := mpa.Parse(h.held0)
	if err == mpa.ErrShort {
		return
	}
	a.becomesIWARP(s)
	if err != nil {
		a.report(wrong, nil, a.ev.number, "MPA: %v", err)
		h.phase, h.held0 = unfollowed, nil
		return
	}
	a.ev.class = management
	frame.PrivateData = bytes.Clone(frame.PrivateData)
	h.frame = frame
	rest := bytes.Clone(h.held0[size:])
	h.held0, h.phase = rest, awaitsReply
	if a.detail {
		a.ev.operation = describeFrame(&frame)
	}
	if !frame.Reply {
		_, to := s.ends(side)
		s.upper, a.ev.upper = newUpper(to.Port(), frame.PrivateData)
		if o.phase == awaitsReply || o.phase == framed {
			a.report(wrong, nil, a.ev.number, "both sides send an MPA request")
		}
		return
	}
	if o.phase == midway { // the request is not in the capture
		h.held0, h.phase = nil, midway
		a.midwayBytes(s, side, rest)
		return
	}
	if o.phase != awaitsReply || o.frame.Reply {
		a.report(wrong, nil, a.ev.number, "MPA's reply, and no request before it")
		h.phase = unfollowed
		return
	}
	if frame.Rejected {
		h.phase, o.phase = unfollowed, unfollowed
		return
	}
	crc := frame.CRC || o.frame.CRC
	h.receiver = mpa.NewReceiver(mpa.Config{Markers: o.frame.Markers, CRC: crc})
	o.receiver = mpa.NewReceiver(mpa.Config{Markers: frame.Markers, CRC: crc})
	h.phase, o.phase = framed, framed
	for _, x := range []int{1 - side, side} {
		if b := s.half[x].held0; len(b) > 0 {
			s.half[x].held0 = nil
			a.fpdus(s, x, b)
		}
	}
}

func describeFrame(f *mpa.Frame) string {
	s := "MPA request"
	if f.Reply {
		s = "MPA reply"
		if f.Rejected {
			s = "MPA reject"
		}
	}
	s += fmt.Sprintf(", revision %d", f.Revision)
	if f.Markers {
		s += ", markers"
	}
	if f.CRC {
		s += ", CRC"
	}
	if f.HasEnhanced {
		s += fmt.Sprintf(", IRD %d, ORD %d", f.Enhanced.IRD, f.Enhanced.ORD)
	}
	if len(f.PrivateData) > 0 {
		s += fmt.Sprintf(", %d bytes of private data", len(f.PrivateData))
	}
	return s
}
