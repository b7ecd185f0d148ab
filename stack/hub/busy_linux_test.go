package hub_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/kernel"
)

// logForwarder is a log that forwards two events to a channel, if there is a receiver: a late hub,
// and the end of rings with another client.
type logForwarder chan string

func (logForwarder) Enabled(context.Context, slog.Level) bool { return true }
func (l logForwarder) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "does not answer yet") || strings.Contains(r.Message, "no rings with another client") {
		said := r.Message
		r.Attrs(func(a slog.Attr) bool {
			said += " " + a.String()
			return true
		})
		select {
		case l <- said:
		default:
		}
	}
	return nil
}
func (l logForwarder) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l logForwarder) WithGroup(string) slog.Handler      { return l }

// TestHubWithoutProcessor checks that a client joins or makes a request at a hub that gets no CPU
// time for a long time.
func TestHubWithoutProcessor(t *testing.T) {
	const addr = "127.31.0.16"
	t.Cleanup(hub.SetAnswerTime(time.Millisecond))
	dir, s := directory(t), &starter{t: t}
	join(t, dir, addr, s.start)
	late := make(logForwarder, 1)
	stopped := func(what string, do func() error) {
		t.Helper()
		stop(t, s.last.Process)
		select {
		case <-late: // an earlier report
		default:
		}
		done := make(chan error, 1)
		go func() { done <- do() }()
		for range 3 {
			select {
			case <-late:
			case err := <-done:
				t.Fatalf("%s, while the hub is stopped: %v", what, err)
			}
		}
		if err := s.last.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatalf("%s, when the hub continues: %v", what, err)
		}
	}
	var host *kernel.Host
	stopped("a client joins", func() (err error) {
		host, err = kernel.New(&kernel.Config{Addrs: []string{addr},
			Sharing: &kernel.Sharing{Directory: dir, Start: s.start, Logger: slog.New(late)}})
		return err
	})
	defer host.Close()
	stopped("a client requests a service", func() error {
		return host.NICs()[0].Datagrams().(stack.Shared).Serve(stack.Service{ID: 1, Mask: ^uint64(0)})
	})
	if s.n != 1 {
		t.Errorf("%d hubs were started", s.n)
	}
}
