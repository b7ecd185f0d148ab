package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// output is what a command prints, while it runs.
type output struct {
	mu    sync.Mutex
	b     bytes.Buffer
	until string // closes seen when it is there
	seen  chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b.Write(p)
	o.look()
	return len(p), nil
}

func (o *output) look() {
	if o.seen != nil && strings.Contains(o.b.String(), o.until) {
		close(o.seen)
		o.seen = nil
	}
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// await waits until a text is printed.
func (c *command) await(t *testing.T, o *output, text string) {
	t.Helper()
	seen := make(chan struct{})
	o.mu.Lock()
	o.until, o.seen = text, seen
	o.look()
	o.mu.Unlock()
	select {
	case <-seen:
	case code := <-c.code:
		t.Fatalf("exits with %d before it prints %q: %s", code, text, &c.err)
	case <-time.After(30 * time.Second):
		t.Fatalf("does not print %q; stderr:\n%s", text, &c.err)
	}
}

// command is a run of the program on a shared lan.
type command struct {
	out, err output
	code     chan int
	stop     context.CancelFunc
}

func start(t *testing.T, lan *pipe.Switch, args string) *command {
	ctx, stop := context.WithCancel(t.Context())
	c := &command{code: make(chan int, 1), stop: stop}
	go func() { c.code <- run(ctx, strings.Fields(args), &env{stdout: &c.out, stderr: &c.err, lan: lan}) }()
	t.Cleanup(stop)
	return c
}

// wait is the exit code.
func (c *command) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-c.code:
		return code
	case <-time.After(30 * time.Second):
		t.Fatalf("still running; stdout:\n%s\nstderr:\n%s", &c.out, &c.err)
		return 0
	}
}

func TestRping(t *testing.T) {
	for _, c := range []struct{ server, client, dial string }{
		{"10.0.0.1/24", "10.0.0.2/24", "10.0.0.1"}, {"fd00::1/64", "fd00::2/64", "fd00::1"},
		{"10.0.0.1/24 --transport iwarp", "10.0.0.2/24 --transport iwarp", "10.0.0.1"},
		{"fd00::1/64 --transport iwarp", "fd00::2/64 --transport iwarp", "fd00::1"},
	} {
		for _, size := range []int{26, 64, 65000} {
			lan := new(pipe.Switch)
			s := start(t, lan, "rping -s -d -v --addr "+c.server)
			s.await(t, &s.err, "msg=listening")
			p := start(t, lan, fmt.Sprintf("rping -c -v -V -C 5 -S %d -a %s --addr %s", size, c.dial, c.client))
			if code := p.wait(t); code != exitOK {
				t.Fatalf("client exits with %d: %s", code, &p.err)
			}
			if code := s.wait(t); code != exitOK || !strings.Contains(s.err.String(), "server DISCONNECT EVENT...") {
				t.Errorf("server exits with %d: %s", code, &s.err)
			}
			pings := strings.Split(strings.TrimSpace(p.out.String()), "\n")
			if len(pings) != 5 || len(pings[4]) != len("ping data: ")+size-1 || !strings.HasPrefix(pings[4], "ping data: rdma-ping-4: EFGH") {
				t.Errorf("client prints %.200q", pings)
			}
			if want := strings.ReplaceAll(p.out.String(), "ping data", "server ping data"); s.out.String() != want {
				t.Errorf("server prints %.200q", &s.out)
			}
		}
	}
}

// TestRpingMemoryGone: a client whose memory cannot be read, and that then disconnects, is told of both.
func TestRpingMemoryGone(t *testing.T) {
	lan := new(pipe.Switch)
	server := start(t, lan, "rping -s -d --addr 10.0.0.1/24")
	server.await(t, &server.err, "msg=listening")
	host, err := netstack.New(lan.Port(), netstack.Addr("10.0.0.2/24"))
	must(t, err)
	defer host.Close()
	dev, err := rdmatransport.Open(host)
	must(t, err)
	client, err := newRpingSide(dev, 64, slog.New(slog.DiscardHandler))
	must(t, err)
	client.conn, err = rdmacm.Dial(t.Context(), dev, "10.0.0.1:7174", client.config(&rdmacm.Config{Param: rpingParam()}))
	must(t, err)
	must(t, client.send(advert{client.source.Addr(), ^client.source.RKey(), 64}))
	e, err := dev.GetAsyncEvent(t.Context())
	must(t, err)
	if e.Type != verbs.EventQPAccessErr {
		t.Errorf("event %v", e.Type)
	}
	must(t, client.Close())
	must(t, dev.Close())
	code := server.wait(t)
	for _, want := range []string{"REM_ACCESS_ERR", "server DISCONNECT EVENT..."} {
		if code != exitFailed || !strings.Contains(server.err.String(), want) {
			t.Errorf("the server exits with %d, and does not say %q: %s", code, want, &server.err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Either side that is interrupted lets the other end well.
func TestRpingInterrupted(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		lan := new(pipe.Switch)
		s := start(t, lan, "rping -s -d --addr 10.0.0.1/24")
		s.await(t, &s.err, "msg=listening")
		p := start(t, lan, "rping -c -v -a 10.0.0.1 --addr 10.0.0.2/24")
		p.await(t, &p.out, "rdma-ping-9:")
		stopped, other, says := p, s, "server DISCONNECT EVENT..."
		if who == "server" {
			stopped, other, says = s, p, "client DISCONNECT EVENT..."
		}
		stopped.stop()
		if code := stopped.wait(t); code != exitFailed || !strings.Contains(stopped.err.String(), "interrupted") {
			t.Errorf("the %s exits with %d: %s", who, code, &stopped.err)
		}
		if code := other.wait(t); code != exitOK || !strings.Contains(other.err.String(), says) {
			t.Errorf("the other of the %s exits with %d: %s", who, code, &other.err)
		}
	}
}

func TestRpingUsage(t *testing.T) {
	for args, want := range map[string]string{
		"rping --addr 10.0.0.1/24":                         "give -s (to be the server) or -c -a ADDRESS",
		"rping -s -c":                                      "can't be used together",
		"rping -c":                                         "give -a ADDRESS",
		"rping -s -S 25":                                   "give 26 to 65535",
		"rping -s -S 65536":                                "give 26 to 65535",
		"rping -c -a 10.0.0.1 --count=-1":                  "give 0",
		"serve --max-size 0 --link tap:x":                  "give 1 to",
		"serve --rping-port 0":                             "--rping-port: 0: give 1 to 65535",
		"serve --pingpong-port x":                          "--pingpong-port: x: give 1 to 65535",
		"serve --pingpong-port 7174":                       "--pingpong-port 7174 is --rping-port too",
		"rping -s -p 0":                                    "--port: 0: give 1 to 65535",
		"mckey --addr 10.0.0.1/24":                         "with -m, such as -m 239.1.2.3",
		"rping -s -p 99999":                                "99999: give 1 to 65535",
		"rping -s --transport ib":                          "give rocev2 or iwarp",
		"rping -c -a 10.0.0.1 --link packet:x -I nonsense": "no IP address",
	} {
		c := start(t, new(pipe.Switch), args)
		if code := c.wait(t); code != exitUsage || !strings.Contains(c.err.String(), want) {
			t.Errorf("%s: exits with %d: %s", args, code, &c.err)
		}
	}
}

// One serve answers many rpings and ping-pongs at once, logs each, and ends well when interrupted.
func TestServe(t *testing.T) {
	lan := new(pipe.Switch)
	s := start(t, lan, "serve --addr 10.0.0.1/24 --addr fd00::1/64 --counters")
	s.await(t, &s.err, "msg=serving")
	var clients sync.WaitGroup
	for i := range 4 {
		transport := []string{"rocev2", "iwarp"}[i%2]
		clients.Go(func() {
			p := start(t, lan, fmt.Sprintf("rping -c -V -C 20 -S 5000 -a 10.0.0.1 --addr 10.0.0.%d/24 --transport %s", 10+i, transport))
			if code := p.wait(t); code != exitOK {
				t.Errorf("rping exits with %d: %s", code, &p.err)
			}
		})
		clients.Go(func() {
			p := start(t, lan, fmt.Sprintf("pingpong rc -c -n 50 -s 10000 fd00::1 --addr fd00::1%d/64", i))
			if code := p.wait(t); code != exitOK {
				t.Errorf("pingpong exits with %d: %s", code, &p.err)
			}
		})
	}
	clients.Wait()
	if t.Failed() {
		t.Fatalf("serve says:\n%s", &s.err)
	}
	s.stop()
	if code := s.wait(t); code != exitOK {
		t.Errorf("serve exits with %d", code)
	}
	log := s.err.String()
	if n := strings.Count(log, "msg=connection service=rping"); n != 4 {
		t.Errorf("%d rpings are logged, want 4:\n%s", n, log)
	}
	if n := strings.Count(log, "service=pingpong"); n != 8 || strings.Count(log, "pings=20") != 4 {
		t.Errorf("%d lines of ping-pongs, want 8:\n%s", n, log)
	}
	_, counters, _ := strings.Cut(log, "Counters of ")
	for _, name := range []string{"cm_rx_msgs_req", "sent_pkts", "rdma_recvs", "iwarp_direct_msgs"} {
		if !strings.Contains(counters, "\n  "+name+" ") {
			t.Errorf("no %s is counted:\n%s", name, log)
		}
	}
}
