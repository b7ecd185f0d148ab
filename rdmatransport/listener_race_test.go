package rdmatransport_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestDestroyListenerDuringDials destroys one listener after the other while peers go on dialling: neither Destroy nor the
// GetRequest that waits may fail or hang, whatever the two and the provider are doing just then.
func TestDestroyListenerDuringDials(t *testing.T) {
	rounds := 100
	if os.Getenv("SOFTRNIC_LONG") != "" {
		rounds = 10_000
	}
	both(t, func(t *testing.T, transport verbs.Transport) {
		lan := pipe.New()
		a, b := newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24")
		dialling, stop := context.WithCancel(t.Context())
		var dials sync.WaitGroup
		defer dials.Wait()
		defer stop()
		for range 8 {
			dials.Go(func() {
				for dialling.Err() == nil {
					ctx, cancel := context.WithTimeout(dialling, 3*time.Millisecond)
					c, err := rdmacm.Dial(ctx, a.dev, "10.0.0.2:7471", &rdmacm.Config{Transport: transport})
					cancel()
					if err == nil {
						c.Close()
					}
				}
			})
		}
		for round := range rounds {
			l := must(rdmacm.CreateSyncID(rdmacm.TCP, b.dev))(t)
			ok(t, l.SetTransports(transport))
			ok(t, l.Bind(netip.MustParseAddrPort("10.0.0.2:7471")))
			ok(t, l.Listen(64))
			ended := make(chan error, 1)
			go func() {
				for {
					r, err := l.GetRequest(context.Background())
					if err != nil {
						ended <- err
						return
					}
					if err := r.Destroy(); err != nil {
						t.Error(err)
					}
				}
			}()
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond) // any moment will do
			if err := l.Destroy(); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			select {
			case err := <-ended:
				if !errors.Is(err, verbs.ErrDestroyed) {
					t.Fatalf("round %d: GetRequest: %v", round, err)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("round %d: GetRequest still waits after Destroy", round)
			}
		}
	})
}
