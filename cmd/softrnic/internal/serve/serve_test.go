package serve

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/pingpong"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/rping"
	"github.com/softrnic/softrnic/link/pipe"
)

// program includes the commands of the clients.
var program = clitest.Program(func() any {
	return new(struct {
		Serve    Command          `cmd:""`
		Rping    rping.Command    `cmd:""`
		Pingpong pingpong.Command `cmd:""`
	})
})

func TestServeUsage(t *testing.T) {
	for args, want := range map[string]string{
		"serve --max-size 0 --link tap:x": "must be 1 to",
		"serve --rping-port 0":            "--rping-port: 0: must be 1 to 65535",
		"serve --pingpong-port x":         "--pingpong-port: x: must be 1 to 65535",
		"serve --pingpong-port 7174":      "--pingpong-port 7174 is also --rping-port",
	} {
		c := program.Start(t, new(pipe.Switch), args)
		if code := c.Wait(t); code != cli.ExitUsage || !strings.Contains(c.Err.String(), want) {
			t.Errorf("%s: exits with %d: %s", args, code, &c.Err)
		}
	}
}

// TestServe: a server answers many rpings and ping-pongs at once, logs each, and exits with status
// 0 when interrupted.
func TestServe(t *testing.T) {
	lan := new(pipe.Switch)
	s := program.Start(t, lan, "serve --addr 10.0.0.1/24 --addr fd00::1/64 --counters")
	s.Await(t, &s.Err, "msg=serving")
	var clients sync.WaitGroup
	for i := range 4 {
		transport := []string{"rocev2", "iwarp"}[i%2]
		clients.Go(func() {
			p := program.Start(t, lan, fmt.Sprintf("rping -c -V -C 20 -S 5000 -a 10.0.0.1 --addr 10.0.0.%d/24 --transport %s", 10+i,
				transport))
			if code := p.Wait(t); code != cli.ExitOK {
				t.Errorf("rping exits with %d: %s", code, &p.Err)
			}
		})
		clients.Go(func() {
			p := program.Start(t, lan, fmt.Sprintf("pingpong rc -c -n 50 -s 10000 fd00::1 --addr fd00::1%d/64", i))
			if code := p.Wait(t); code != cli.ExitOK {
				t.Errorf("pingpong exits with %d: %s", code, &p.Err)
			}
		})
	}
	clients.Wait()
	if t.Failed() {
		t.Fatalf("serve printed:\n%s", &s.Err)
	}
	s.Stop()
	if code := s.Wait(t); code != cli.ExitOK {
		t.Errorf("serve exits with %d", code)
	}
	log := s.Err.String()
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

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }
