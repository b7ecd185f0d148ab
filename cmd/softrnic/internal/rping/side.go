package rping

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
)

// The messages between the two sides of an rping:
//
//	client                                         server
//	  SEND where the source is ───────────────────►
//	  ◄──────────────────────────────────────── READ
//	  ◄───────────────────────────── SEND "go ahead"
//	  SEND where the sink is ─────────────────────►
//	  ◄─────────────────────── WRITE, up to its NUL
//	  ◄───────────────────────────── SEND "go ahead"
//	and again.

// advert is the message with the address of a buffer: address (8 bytes), rkey (4), length (4), each
// big-endian. "Go ahead" is an advert of zeros.
type advert struct {
	addr uint64
	rkey uint32
	size uint32
}

const advertLen = 16

func (a advert) encode(b []byte) {
	binary.BigEndian.PutUint64(b, a.addr)
	binary.BigEndian.PutUint32(b[8:], a.rkey)
	binary.BigEndian.PutUint32(b[12:], a.size)
}

func parseAdvert(b []byte) (advert, error) {
	if len(b) != advertLen {
		return advert{}, fmt.Errorf("the peer sent %d bytes, where rping sends %d (is it an rping?)", len(b), advertLen)
	}
	return advert{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}, nil
}

// errDisconnected is returned when the peer has disconnected, as a client does at its end.
var errDisconnected = errors.New("the peer has disconnected")

// Goodbye reports whether err is only the peer's disconnection. It returns false if a work request
// failed before, as when the memory of a killed peer is freed before its connection ends.
func Goodbye(err error) bool {
	var failed *verbs.WCError
	return errors.Is(err, errDisconnected) && !errors.As(err, &failed)
}

// side is one side's half of a connection.
type side struct {
	log  *slog.Logger
	pd   *verbs.PD
	cq   *completion.Waiter
	conn *rdmacm.Conn

	messages *verbs.MR // received messages, then sent messages
	source   *verbs.MR // the client's text
	sink     *verbs.MR // the client's destination of the text, and the server's buffer

	adverts []advert // received and not yet handled
	done    [4]int   // completions by opcode that were not yet waited for
}

// newSide creates the objects of a connection. If size is 0, the buffers are created later.
func newSide(dev *verbs.Device, size int, log *slog.Logger) (s *side, err error) {
	s = &side{log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.pd, err = dev.AllocPD(); err != nil {
		return s, err
	}
	if s.cq, err = completion.NewWaiter(dev, 2*depth, completion.Adaptive); err != nil {
		return s, err
	}
	if s.messages, err = s.pd.RegMR(make([]byte, 2*advertLen), verbs.AccessLocalWrite); err != nil || size == 0 {
		return s, err
	}
	if s.source, err = s.pd.RegMR(make([]byte, size), verbs.AccessRemoteRead); err != nil {
		return s, err
	}
	s.sink, err = s.pd.RegMR(make([]byte, size), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	return s, err
}

const depth = 16

// config adds this side's QP to a Config.
func (s *side) config(cfg *rdmacm.Config) *rdmacm.Config {
	cfg.PD, cfg.SendCQ, cfg.RecvCQ = s.pd, s.cq.CQ, s.cq.CQ
	cfg.Cap = verbs.QPCap{MaxSendWR: depth, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}
	cfg.Prepare = func(c *rdmacm.Conn) error { return s.postRecv(c.QP()) }
	return cfg
}

// Close disconnects and closes the objects of newSide, even if it has failed midway.
func (s *side) Close() error {
	return errors.Join(cli.Close(s.conn), cli.Close(s.cq), cli.Close(s.messages), cli.Close(s.source), cli.Close(s.sink), cli.Close(s.pd))
}

func (s *side) postRecv(qp *verbs.QP) error {
	return qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{s.messages.SGE(0, advertLen)}})
}

// send sends an advert, or "go ahead".
func (s *side) send(a advert) error {
	a.encode(s.messages.Buf()[advertLen:])
	s.log.Debug("send", "addr", a.addr, "rkey", a.rkey, "size", a.size)
	return s.post(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{s.messages.SGE(advertLen, advertLen)}})
}

func (s *side) post(wr *verbs.SendWR) error {
	wr.Flags = verbs.SendSignaled
	return s.ended(s.conn.QP().PostSend(wr))
}

// disconnectWait is how long after the QP's transition to ERR its disconnection may be reported.
const disconnectWait = 2 * time.Second

// disconnected returns errDisconnected if the peer has disconnected, and else nil.
func (s *side) disconnected() error {
	select {
	case <-s.conn.Done():
		return errDisconnected
	default:
		return nil
	}
}

// ended returns err, or errDisconnected in its place if the peer has disconnected.
func (s *side) ended(err error) error {
	if err == nil || s.disconnected() == nil {
		return err
	}
	return errDisconnected
}

// poll waits for at least one completion.
func (s *side) poll(ctx context.Context) error {
	var wcs [4]verbs.WC
	n, err := s.cq.Wait(ctx, wcs[:])
	if failed := (*verbs.WCError)(nil); errors.As(err, &failed) {
		// The QP is flushed before the event of the disconnection.
		select {
		case <-s.conn.Done():
		case <-ctx.Done():
		case <-time.After(disconnectWait):
		}
		if failed.Status != verbs.WCWRFlushErr {
			return errors.Join(err, s.disconnected())
		}
	}
	if err != nil {
		return s.ended(err)
	}
	for i := range wcs[:n] {
		switch wc := &wcs[i]; wc.Opcode {
		case verbs.WCRecv:
			a, err := parseAdvert(s.messages.Buf()[:min(int(wc.ByteLen), advertLen)])
			if err != nil {
				return err
			}
			s.log.Debug("received", "addr", a.addr, "rkey", a.rkey, "size", a.size)
			s.adverts = append(s.adverts, a)
			if err := s.ended(s.postRecv(s.conn.QP())); err != nil {
				return err
			}
		case verbs.WCSend, verbs.WCRDMARead, verbs.WCRDMAWrite:
			s.log.Debug("done", "opcode", wc.Opcode)
			s.done[wc.Opcode]++
		}
	}
	return nil
}

// receive waits for the peer's next message.
func (s *side) receive(ctx context.Context) (advert, error) {
	for len(s.adverts) == 0 {
		if err := s.poll(ctx); err != nil {
			return advert{}, err
		}
	}
	a := s.adverts[0]
	s.adverts = s.adverts[1:]
	return a, nil
}

// carry posts a request and waits for its completion.
func (s *side) carry(ctx context.Context, wr *verbs.SendWR, op verbs.WCOpcode) error {
	if err := s.post(wr); err != nil {
		return err
	}
	for s.done[op] == 0 {
		if err := s.poll(ctx); err != nil {
			return err
		}
	}
	s.done[op]--
	return nil
}

// client pings --count times, or forever if it is 0.
func (s *side) client(ctx context.Context, c *Command, w io.Writer) error {
	source, sink := s.source.Buf(), s.sink.Buf()
	for ping := 0; c.Count == 0 || ping < c.Count; ping++ {
		pingText(source, ping)
		for _, mr := range []*verbs.MR{s.source, s.sink} {
			if err := s.send(advert{mr.Addr(), mr.RKey(), uint32(mr.Length())}); err != nil {
				return err
			}
			if _, err := s.receive(ctx); err != nil {
				return err
			}
		}
		if c.Validate && !bytes.Equal(source, sink) {
			return fmt.Errorf("ping %d: data mismatch", ping)
		}
		if c.Verbose {
			fmt.Fprintf(w, "ping data: %s\n", upToNUL(sink))
		}
	}
	return nil
}

// pingText writes the n-th ping: its number, then letters whose first one advances with n, and a
// NUL.
func pingText(b []byte, n int) {
	const first, last = 'A', 'z'
	at := copy(b, fmt.Sprintf("rdma-ping-%d: ", n))
	for i := at; i < len(b); i++ {
		b[i] = first + byte((n+i-at)%(last-first+1))
	}
	b[len(b)-1] = 0
}

// upToNUL returns b up to its first NUL.
func upToNUL(b []byte) []byte {
	t, _, _ := bytes.Cut(b, []byte{0})
	return t
}

// server answers pings until the peer disconnects, and returns their number.
func (s *side) server(ctx context.Context, prove func(), w io.Writer) (pings int, err error) {
	for ; ; pings++ {
		if pings > 0 {
			prove()
		}
		a, err := s.receive(ctx)
		if err != nil {
			return pings, err
		}
		if err := s.grow(a.size); err != nil {
			return pings, err
		}
		if err := s.carry(ctx, &verbs.SendWR{Opcode: verbs.RDMARead, SGList: []verbs.SGE{s.sink.SGE(0, int(a.size))},
			RemoteAddr: a.addr, RKey: a.rkey}, verbs.WCRDMARead); err != nil {
			return pings, err
		}
		ping := upToNUL(s.sink.Buf()[:a.size])
		fmt.Fprintf(w, "server ping data: %s\n", ping)
		if err := s.send(advert{}); err != nil {
			return pings, err
		}
		if a, err = s.receive(ctx); err != nil {
			return pings, err
		}
		n := min(len(ping)+1, s.sink.Length())
		if err := s.carry(ctx, &verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{s.sink.SGE(0, n)},
			RemoteAddr: a.addr, RKey: a.rkey}, verbs.WCRDMAWrite); err != nil {
			return pings, err
		}
		if err := s.send(advert{}); err != nil {
			return pings, err
		}
	}
}

// grow enlarges the server's buffer to size bytes.
func (s *side) grow(size uint32) (err error) {
	switch {
	case size < 1 || size > maxPing:
		return fmt.Errorf("the peer offers %d bytes, where rping offers 1 to %d", size, maxPing)
	case s.sink != nil && s.sink.Length() >= int(size):
		return nil
	case s.sink != nil:
		err = s.sink.Close()
		s.sink = nil
	}
	if err == nil {
		s.sink, err = s.pd.RegMR(make([]byte, size), verbs.AccessLocalWrite)
	}
	return err
}

// acceptTimeout is the time that a client has to complete its connection. rdma_cm alone lets a RoCE
// client have a quarter of an hour.
const acceptTimeout = 30 * time.Second

// Answer accepts a client and answers its pings. It calls prove after each. On success it returns
// errDisconnected.
func Answer(ctx context.Context, r *rdmacm.Request, prove func(), w io.Writer, log *slog.Logger) (pings int, err error) {
	s, err := newSide(r.Device(), 0, log)
	if err != nil {
		return 0, errors.Join(err, r.Reject(nil))
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	accepting, cancel := context.WithTimeout(ctx, acceptTimeout)
	s.conn, err = r.Accept(accepting, s.config(&rdmacm.Config{}))
	cancel()
	if err != nil {
		return 0, err
	}
	return s.server(ctx, prove, w)
}
