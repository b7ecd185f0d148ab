package tap

import (
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// TestPollingStartsAndStops checks reception by polling, by the link's goroutine, and changes
// between the two.
func TestPollingStartsAndStops(t *testing.T) {
	for _, cfg := range []Config{{Wait: link.WaitAdaptive}, {Wait: link.WaitEvent}, {Wait: link.WaitPoll}, {NoOffloads: true}} {
		inNamespace(t)
		interfaces.Bridge(t, "br0", 0)
		a := openTAP(t, "a0", &Config{Bridge: "br0"})
		cfg.Bridge = "br0"
		b := openTAP(t, "b0", &cfg)
		linktest.Polling(t, a, b, 1000)
		b.Close()
		a.Close()
	}
}

// TestCloseWhilePolled checks that Close returns, and that nothing is received afterwards.
func TestCloseWhilePolled(t *testing.T) {
	inNamespace(t)
	for range 20 {
		linktest.CloseWhilePolled(t, openTAP(t, "a0", nil), func() {})
	}
}
