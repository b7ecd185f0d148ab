package chaos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// TestHub kills processes that share one address through a hub, at random moments. They connect and
// send to other processes, which are under load. The hub is killed, too. The data of every other
// pair must be right, and arrive once and in order. No memory and no QP number may be left. Most
// pairs have rings with each other; the last one or two send through the hub. The clients of the
// first one or three have addresses of their own, so that the kernel steers their data. With
// SOFTRNIC_LONG it kills 1,000 processes and the hub 200 times, beside 20 others; otherwise 10 and
// 2, beside 8.
func TestHub(t *testing.T) {
	gate.System(t)
	dir := filepath.Join(directory(t), "hub")
	here := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(255), 1+rand.N(254))
	always := func(int) string { return here }
	server := startHub(t, dir)
	// iWARP does not go through a hub.
	l := setting{medium: "hub", dir: dir, victim: here, server: always, client: always, transports: []verbs.Transport{verbs.RoCEv2},
		without: long(1, 2), outside: long(1, 3)}.start(t, long(4, 10))
	kills, hubs := long(10, 1000), long(2, 200)
	l.killSome(kills, func(k int) {
		if k%(kills/hubs) == 0 {
			server.kill()
			time.Sleep(time.Duration(l.random.IntN(50)) * time.Millisecond)
			server = startHub(t, dir)
		}
	})
	await(t, "the hub has a ring for each process that lives", func() bool { return server.rings() == l.clientsOfHub() })
	l.ringsEach(3) // one with the hub, and two with the other process of the pair
	await(t, "the lease of each process that was killed has ended", func() bool { return leased(t, dir) == l.clientsOfHub() })
	l.end()
	await(t, "no ring is left", func() bool { return server.rings() == 0 })
	await(t, "no lease is left", func() bool { return leased(t, dir) == 0 })
}

// startHub starts a hub, and waits until it is ready.
func startHub(t *testing.T, dir string) *process {
	t.Helper()
	p := start(t, "hub", dir)
	await(t, "the hub is up", func() bool { return hub.Running(dir) })
	return p
}

// leased returns the number of leases that have not ended, from the hub's own records.
func leased(t *testing.T, dir string) (n int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "leases"))
	if err != nil {
		t.Fatal(err)
	}
	var all []struct{ Died time.Time }
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if l.Died.IsZero() {
			n++
		}
	}
	return n
}
