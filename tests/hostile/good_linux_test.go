package hostile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// Of a hundred operations of a client, one is on a new connection.
const reconnect = 100

// connected is a connection that is made again from time to time, and after errors.
type connected[C io.Closer] struct {
	dial func(context.Context) (C, error)
	conn C
	open bool
	n    int
}

// do does an operation.
func (c *connected[C]) do(ctx context.Context, f func(context.Context, C) error) (err error) {
	if c.n++; c.n%reconnect == 0 {
		c.close()
	}
	if !c.open {
		if c.conn, err = c.dial(ctx); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		c.open = true
	}
	if err := f(ctx, c.conn); err != nil {
		c.close()
		return err
	}
	return nil
}

func (c *connected[C]) close() {
	if c.open {
		_ = c.conn.Close()
		c.open = false
	}
}

// client makes a good client with a connection.
func client[C io.Closer](t *testing.T, name string, dial func(context.Context) (C, error), f func(context.Context, C) error) *good {
	c := &connected[C]{dial: dial}
	t.Cleanup(c.close)
	return &good{name: name, do: func(ctx context.Context) error { return c.do(ctx, f) }}
}

// stream makes a good client of a TCP server.
func stream(t *testing.T, name, to string, f func(net.Conn) error) *good {
	dial := func(ctx context.Context) (*net.TCPConn, error) { return dialFrom(ctx, goodAddr, to) }
	return client(t, name, dial, func(ctx context.Context, c *net.TCPConn) error {
		deadline, _ := ctx.Deadline()
		_ = c.SetDeadline(deadline)
		return f(c)
	})
}

// null is the procedure 0 of an RPC program, as a call (RFC 5531 §9).
func null(xid, program uint32) (b []byte) {
	for _, word := range []uint32{xid, 0, 2, program, 3, 0, 0, 0, 0, 0} {
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return b
}

// record is a record of one fragment (RFC 5531 §11).
func record(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(b))), b...)
}

const programMount, programNFS = 100005, 100003

// exchange sends something, and reads n bytes.
func exchange(b []byte, n int) func(net.Conn) error {
	return func(c net.Conn) error {
		if _, err := c.Write(b); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, n))
		return err
	}
}

// goodClients returns one for each service.
func goodClients(t *testing.T, dev *verbs.Device, servers []*server) []*good {
	block := make([]byte, 4096)
	disk := func(transport verbs.Transport) *good {
		var ns *host.Namespace
		return client(t, "nvme serve, "+transport.String(), func(ctx context.Context) (*host.Controller, error) {
			c, err := host.Dial(ctx, dev, nvmeAddr+":4420", &host.Config{NQN: nqn, IOQueues: 1, Transport: transport})
			if err == nil {
				ns, err = c.Namespace(ctx, 1)
			}
			return c, err
		}, func(ctx context.Context, _ *host.Controller) error {
			_, err := ns.Read(ctx, block, 0)
			return err
		})
	}
	files := func(transport verbs.Transport) *good {
		return client(t, "nfs serve, "+transport.String(), func(ctx context.Context) (*rpcrdma.Client, error) {
			return rpcrdma.Dial(ctx, dev, nfsAddr+":20049", &rpcrdma.Config{Transport: transport})
		}, func(ctx context.Context, c *rpcrdma.Client) error {
			reply, err := c.Call(ctx, null(1, programNFS))
			if err == nil && len(reply) != 24 {
				err = fmt.Errorf("a reply of %d bytes", len(reply))
			}
			return err
		})
	}
	all := []*good{
		disk(verbs.RoCEv2), disk(verbs.IWARP), files(verbs.RoCEv2), files(verbs.IWARP),
		stream(t, "nfs serve, MOUNT", nfsAddr+":20048", exchange(record(null(1, programMount)), 28)),
		stream(t, "proxy", proxyAddr+":7471", exchange(make([]byte, 1000), 1000)),
		tester(t),
		client(t, "serve, rping", func(ctx context.Context) (*pinger, error) { return newPinger(ctx, dev, serveAddr, 64) },
			func(ctx context.Context, p *pinger) error { return p.ping(ctx) }),
		{name: "serve, pingpong", do: pingpong},
	}
	for _, s := range servers {
		all = append(all, &good{name: s.name + ", metrics", do: metricsOf(s), slow: true})
	}
	return all
}

// tester is a client of the responder of softrnic conform: hello and the creation of a QP, and then
// its state.
func tester(t *testing.T) *good {
	type session struct {
		*net.TCPConn
		in *bufio.Reader
	}
	ask := func(s session, request map[string]any) error {
		b, _ := json.Marshal(request)
		if _, err := s.Write(append(b, '\n')); err != nil {
			return err
		}
		line, err := s.in.ReadBytes('\n')
		if err != nil {
			return err
		}
		var reply struct{ Error string }
		if err := json.Unmarshal(line, &reply); err != nil {
			return err
		}
		if reply.Error != "" {
			return errors.New(reply.Error)
		}
		return nil
	}
	return client(t, "serve --conform", func(ctx context.Context) (session, error) {
		c, err := dialFrom(ctx, goodAddr, serveAddr+":18516")
		if err != nil {
			return session{}, err
		}
		s := session{c, bufio.NewReader(c)}
		_ = c.SetDeadline(time.Now().Add(patience))
		err = ask(s, map[string]any{"op": "hello", "token": token})
		if err == nil {
			err = ask(s, map[string]any{"op": "create_qp", "create": map[string]any{"type": "RC", "memory": 4096}})
		}
		if err != nil {
			_ = c.Close()
		}
		return s, err
	}, func(_ context.Context, s session) error {
		_ = s.SetDeadline(time.Now().Add(patience))
		return ask(s, map[string]any{"op": "state", "qp": 1})
	})
}

// metricsOf returns the operation of a Prometheus.
func metricsOf(s *server) func(context.Context) error {
	dial := func(ctx context.Context, _, to string) (net.Conn, error) { return dialFrom(ctx, goodAddr, to) }
	from := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	return func(ctx context.Context) error {
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.metrics+"/metrics", nil)
		resp, err := from.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
}

func scrape(t *testing.T, s *server) string {
	resp, err := http.Get("http://" + s.metrics + "/metrics")
	ok(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	ok(t, err)
	return string(b)
}

// pingpongDest is what an ibv_rc_pingpong sends first: the address of a QP, here one that does not
// exist.
func pingpongDest(from string) []byte {
	return fmt.Appendf(nil, "0000:%06x:%06x:00000000000000000000ffff%x\x00", 0x123456, 1, []byte(net.ParseIP(from).To4()))
}

// pingpong exchanges the addresses of QPs with softrnic serve.
func pingpong(ctx context.Context) error {
	c, err := dialFrom(ctx, goodAddr, serveAddr+":18515")
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	dest := pingpongDest(goodAddr)
	return exchange(dest, len(dest))(c)
}

// pinger is a client of rping.
type pinger struct {
	conn           *rdmacm.Conn
	pd             *verbs.PD
	mr, text, sink *verbs.MR
}

// newPinger connects to an rping at an address. Its text has size bytes.
func newPinger(ctx context.Context, dev *verbs.Device, to string, size int) (p *pinger, err error) {
	p = new(pinger)
	defer func() {
		if err != nil {
			_ = p.Close()
		}
	}()
	if p.pd, err = dev.AllocPD(); err != nil {
		return p, err
	}
	if p.mr, err = p.pd.RegMR(make([]byte, 32), verbs.AccessLocalWrite); err != nil {
		return p, err
	}
	if p.text, err = p.pd.RegMR(make([]byte, size), verbs.AccessRemoteRead); err != nil {
		return p, err
	}
	if p.sink, err = p.pd.RegMR(make([]byte, size), verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return p, err
	}
	p.conn, err = rdmacm.Dial(ctx, dev, to+":7174", &rdmacm.Config{PD: p.pd, SQSigAll: true, Prepare: p.prepare})
	return p, err
}

func (p *pinger) prepare(c *rdmacm.Conn) error {
	return errors.Join(p.receive(c.QP()), p.receive(c.QP()))
}

func (p *pinger) receive(qp *verbs.QP) error {
	return qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{p.mr.SGE(16, 16)}})
}

// ping tells the server where the text is, and then where it goes to, and compares what arrives.
func (p *pinger) ping(ctx context.Context) error {
	text := p.text.Buf()
	for i := range text[:len(text)-1] {
		text[i] = byte(1 + rand.Uint32N(255))
	}
	for _, of := range []*verbs.MR{p.text, p.sink} {
		b := p.mr.Buf()
		binary.BigEndian.PutUint64(b, of.Addr())
		binary.BigEndian.PutUint32(b[8:], of.RKey())
		binary.BigEndian.PutUint32(b[12:], uint32(of.Length()))
		if err := p.conn.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{p.mr.SGE(0, 16)}}); err != nil {
			return err
		}
		for _, cq := range []*verbs.CQ{p.conn.SendCQ(), p.conn.RecvCQ()} {
			var wcs [1]verbs.WC
			if _, err := cq.Wait(ctx, wcs[:]); err != nil {
				return err
			}
			if err := wcs[0].Err(); err != nil {
				return err
			}
		}
		if err := p.receive(p.conn.QP()); err != nil {
			return err
		}
	}
	if !bytes.Equal(p.text.Buf(), p.sink.Buf()) {
		return errors.New("another text has come back")
	}
	return nil
}

// Close implements io.Closer.
func (p *pinger) Close() error {
	if p.conn != nil {
		_ = p.conn.Close()
	}
	for _, mr := range []*verbs.MR{p.mr, p.text, p.sink} {
		if mr != nil {
			_ = mr.Close()
		}
	}
	return p.pd.Close()
}
