//go:build linux

package peer

import (
	"os"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// TestCrash: a peer whose kernel has crashed is replaced.
func TestCrash(t *testing.T) {
	gate.System(t)
	cfg := Config{ID: 98}
	crashed := Boot(t, cfg)[0]
	_, _ = crashed.Start("echo c >/proc/sysrq-trigger")
	select {
	case <-crashed.gone:
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
	p := Boot(t, cfg)[0]
	if p == crashed {
		t.Error("it is not replaced")
	}
	p.Run(t, "true")
}
