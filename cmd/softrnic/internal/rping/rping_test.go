package rping

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

func TestRping(t *testing.T) {
	for _, c := range []struct{ server, client, dial string }{
		{"10.0.0.1/24", "10.0.0.2/24", "10.0.0.1"}, {"fd00::1/64", "fd00::2/64", "fd00::1"},
		{"10.0.0.1/24 --transport iwarp", "10.0.0.2/24 --transport iwarp", "10.0.0.1"},
		{"fd00::1/64 --transport iwarp", "fd00::2/64 --transport iwarp", "fd00::1"},
	} {
		for _, size := range []int{26, 64, 65000} {
			lan := new(pipe.Switch)
			s := program.Start(t, lan, "rping -s -d -v --addr "+c.server)
			s.Await(t, &s.Err, "msg=listening")
			p := program.Start(t, lan, fmt.Sprintf("rping -c -v -V -C 5 -S %d -a %s --addr %s", size, c.dial, c.client))
			if code := p.Wait(t); code != cli.ExitOK {
				t.Fatalf("client exits with %d: %s", code, &p.Err)
			}
			if code := s.Wait(t); code != cli.ExitOK || !strings.Contains(s.Err.String(), "server DISCONNECT EVENT...") {
				t.Errorf("server exits with %d: %s", code, &s.Err)
			}
			pings := strings.Split(strings.TrimSpace(p.Out.String()), "\n")
			if len(pings) != 5 || len(pings[4]) != len("ping data: ")+size-1 ||
				!strings.HasPrefix(pings[4], "ping data: rdma-ping-4: EFGH") {
				t.Errorf("client prints %.200q", pings)
			}
			if want := strings.ReplaceAll(p.Out.String(), "ping data", "server ping data"); s.Out.String() != want {
				t.Errorf("server prints %.200q", &s.Out)
			}
		}
	}
}

// TestRpingAllow: a host that --allow excludes cannot connect, and a network that it has can.
func TestRpingAllow(t *testing.T) {
	for _, transport := range []string{"rocev2", "iwarp"} {
		lan := new(pipe.Switch)
		s := program.Start(t, lan, "rping -s -P -d --counters --addr 10.0.0.1/24 --allow fd00::/8,10.0.0.2 --allow 10.0.0.4 --transport "+
			transport)
		s.Await(t, &s.Err, "msg=listening")
		for addr, want := range map[string]int{"10.0.0.2": cli.ExitOK, "10.0.0.3": cli.ExitFailed, "10.0.0.4": cli.ExitOK} {
			p := program.Start(t, lan, fmt.Sprintf("rping -c -C 1 -a 10.0.0.1 --addr %s/24 --transport %s", addr, transport))
			if code := p.Wait(t); code != want || want != cli.ExitOK && !strings.Contains(p.Err.String(), "REJECTED") {
				t.Errorf("%v over %s: exit status %d: %s", addr, transport, code, &p.Err)
			}
		}
		s.Stop()
		if s.Wait(t); !regexp.MustCompile(`access_denied +1\n`).MatchString(s.Err.String()) {
			t.Errorf("the counters: %s", &s.Err)
		}
	}
}

// TestRpingMemoryGone: if a client's memory cannot be read and it then disconnects, both are
// reported.
func TestRpingMemoryGone(t *testing.T) {
	lan := new(pipe.Switch)
	server := program.Start(t, lan, "rping -s -d --addr 10.0.0.1/24")
	server.Await(t, &server.Err, "msg=listening")
	host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
	must(t, err)
	defer host.Close()
	dev, err := rdmatransport.Open(host, nil)
	must(t, err)
	client, err := newSide(dev, 64, slog.New(slog.DiscardHandler))
	must(t, err)
	client.conn, err = rdmacm.Dial(t.Context(), dev, "10.0.0.1:7174", client.config(&rdmacm.Config{Param: connParam()}))
	must(t, err)
	must(t, client.send(advert{client.source.Addr(), ^client.source.RKey(), 64}))
	e, err := dev.GetAsyncEvent(t.Context())
	must(t, err)
	if e.Type != verbs.EventQPAccessErr {
		t.Errorf("event %v", e.Type)
	}
	must(t, client.Close())
	must(t, dev.Close())
	code := server.Wait(t)
	for _, want := range []string{"REM_ACCESS_ERR", "server DISCONNECT EVENT..."} {
		if code != cli.ExitFailed || !strings.Contains(server.Err.String(), want) {
			t.Errorf("the server exits with %d and does not print %q: %s", code, want, &server.Err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRpingInterrupted: if one side is interrupted, the other side exits with status 0.
func TestRpingInterrupted(t *testing.T) {
	for _, who := range []string{"client", "server"} {
		lan := new(pipe.Switch)
		s := program.Start(t, lan, "rping -s -d --addr 10.0.0.1/24")
		s.Await(t, &s.Err, "msg=listening")
		p := program.Start(t, lan, "rping -c -v -a 10.0.0.1 --addr 10.0.0.2/24")
		p.Await(t, &p.Out, "rdma-ping-9:")
		stopped, other, says := p, s, "server DISCONNECT EVENT..."
		if who == "server" {
			stopped, other, says = s, p, "client DISCONNECT EVENT..."
		}
		stopped.Stop()
		if code := stopped.Wait(t); code != cli.ExitFailed || !strings.Contains(stopped.Err.String(), "interrupted") {
			t.Errorf("the %s exits with %d: %s", who, code, &stopped.Err)
		}
		if code := other.Wait(t); code != cli.ExitOK || !strings.Contains(other.Err.String(), says) {
			t.Errorf("the other of the %s exits with %d: %s", who, code, &other.Err)
		}
	}
}

func TestRpingUsage(t *testing.T) {
	for args, want := range map[string]string{
		"rping --addr 10.0.0.1/24":        "use -s for the server or -c -a ADDRESS",
		"rping -s -c":                     "can't be used together",
		"rping -c":                        "use -a ADDRESS",
		"rping -s -S 25":                  "must be 26 to 65535",
		"rping -s -S 65536":               "must be 26 to 65535",
		"rping -c -a 10.0.0.1 --count=-1": "must be 0",
		"rping -s -p 0":                   "--port: 0: must be 1 to 65535",
		"rping -s -p 99999":               "99999: must be 1 to 65535",
		"rping -s --transport ib":         "must be rocev2 or iwarp",
		"rping -c -a 10.0.0.1 --link packet:x -I nonsense": "not an IP address",
	} {
		c := program.Start(t, new(pipe.Switch), args)
		if code := c.Wait(t); code != cli.ExitUsage || !strings.Contains(c.Err.String(), want) {
			t.Errorf("%s: exits with %d: %s", args, code, &c.Err)
		}
	}
}
