package receive

import (
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
)

// The number of responses of a READ in a burst, with a window of 128.
func TestPace(t *testing.T) {
	const window = 128
	for _, c := range []struct {
		name    string
		events  func(p *pace)
		packets uint32 // of the next READ
		want    uint32
	}{
		{"a window or less", func(*pace) {}, window, window},
		{"more than a window, of an unknown peer", func(*pace) {}, window + 1, firstBurst},
		{"after a loss", func(p *pace) { p.onLoss(1000, window) }, 1000, firstBurst / 2},
		{"after a loss, a short one", func(p *pace) { p.onLoss(10, window) }, 10, window / 2},
		{"after many losses", func(p *pace) {
			for range 10 {
				p.onLoss(1000, window)
			}
		}, 1000, send.MinWindow},
		{"after a long one", func(p *pace) { p.onSent(1000, window) }, 1000, 2 * firstBurst},
		{"after many long ones", func(p *pace) {
			for range 10 {
				p.onSent(1000, window)
			}
		}, 1000, window},
		{"after short ones", func(p *pace) { p.onSent(10, window) }, 1000, firstBurst},
	} {
		var p pace
		c.events(&p)
		if got := p.size(c.packets, window); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
