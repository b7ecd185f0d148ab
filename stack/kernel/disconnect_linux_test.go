package kernel_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/classify"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/verbs"
)

// TestDisconnectWithoutHub checks a process that ends while there is no hub. It waits for the next
// hub, so that its peer is notified.
func TestDisconnectWithoutHub(t *testing.T) {
	own := must(os.MkdirTemp("", "h"))(t) // the path of a socket must be short
	t.Cleanup(func() { _ = os.RemoveAll(own) })
	dir := filepath.Join(own, "hub")
	serve := func() (end func()) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- hub.Serve(ctx, hub.Config{Directory: dir, Classifier: classify.New()}) }()
		return func() {
			if cancel(); <-ended != nil {
				t.Error("the hub failed")
			}
		}
	}
	addr := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(255), 1+rand.N(254))
	device := func() *verbs.Device {
		h := must(kernel.New(&kernel.Config{Addrs: []string{addr},
			Sharing: &kernel.Sharing{Directory: dir, Start: func(string) error { return nil }}}))(t)
		t.Cleanup(func() { _ = h.Close() })
		return open(t, h)
	}
	end := serve()
	stays, leaves := device(), device()
	kept, _ := dialRC(t, stays, leaves, addr, verbs.RoCEv2)
	end()
	await := func(what string, ok func() bool) {
		for give := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(give) {
				t.Fatalf("%s: timeout after 20 s", what)
			}
		}
	}
	await("the port is down", func() bool { p, err := leaves.QueryPort(1); return err != nil || p.State == verbs.PortDown })
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		done <- leaves.Shutdown(ctx)
	}()
	// DREQs: more than are sent to a peer that does not answer, and longer than a stream waits.
	const said = 22
	await("DREQs", func() bool { return must(leaves.HWCounters())(t)["cm_tx_msgs_dreq"] > said })
	end = serve()
	defer end()
	if err := <-done; err != nil {
		t.Error(err)
	}
	select {
	case <-kept.Done():
	case <-time.After(20 * time.Second):
		t.Error("the peer was not notified")
	}
}
