package send

import (
	"testing"
	"time"
)

func TestWindow(t *testing.T) {
	for mtu, want := range map[uint32]uint32{256: 512, 1024: 512, 2048: 256, 4096: 128} {
		if got := Window(DefaultWindow, mtu); got != want {
			t.Errorf("window of MTU %d: %d, want %d", mtu, got, want)
		}
	}
	for _, c := range []struct {
		name string
		do   func(w *window)
		size uint16
	}{
		{"new", func(*window) {}, 128},
		{"acknowledged when open", func(w *window) { w.set(w.onAck(5)) }, 128},
		{"went back", func(w *window) { w.set(w.onGoBack()) }, 64},
		{"timed out twice", func(w *window) { w.set(w.onTimeout()); w.set(w.onTimeout()) }, 32},
		{"went back and acknowledged", func(w *window) { w.set(w.onGoBack()); w.set(w.onAck(7)) }, 71},
		{"lost", func(w *window) { w.set(w.onLoss(28)) }, 100},
		{"lost more than there is", func(w *window) { w.set(w.onLoss(500)) }, MinWindow},
		{"tail lost", func(w *window) { w.set(w.onTailLoss()) }, MinWindow},
		{"at least", func(w *window) {
			for range 9 {
				w.set(w.onTimeout())
			}
		}, MinWindow},
	} {
		var w window
		w.init(&Path{Window: 128, Batch: 15, Congestion: Conservation{}})
		if c.do(&w); w.size != c.size {
			t.Errorf("%s: %d, want %d", c.name, w.size, c.size)
		}
	}
}

// stubborn returns sizes out of bounds. The window calls it for each event, and clamps the result.
type stubborn struct{ calls []string }

func (s *stubborn) Params() Params      { return Params{MinWindow: MinWindow} }
func (s *stubborn) Rate(uint32) float64 { return 0 }
func (s *stubborn) OnRoundTrip(uint32, time.Duration, time.Duration) uint32 {
	panic("it did not request that")
}
func (s *stubborn) OnAck(_, n uint32) uint32   { s.calls = append(s.calls, "ack"); return 1 << 20 }
func (s *stubborn) OnLoss(_, n uint32) uint32  { s.calls = append(s.calls, "loss"); return 0 }
func (s *stubborn) OnGoBack(uint32) uint32     { s.calls = append(s.calls, "back"); return 100 }
func (s *stubborn) OnTimeout(uint32) uint32    { s.calls = append(s.calls, "timeout"); return 50 }
func (s *stubborn) OnTailLoss(w uint32) uint32 { s.calls = append(s.calls, "tail"); return w }

func TestFrames(t *testing.T) {
	var w window
	w.init(&Path{Window: 128, Batch: 15, Congestion: Conservation{}})
	for packets, rests := range map[uint32][]uint32{
		18: {2, 1, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 15},
		16: {1, 15, 14}, // the first packet alone, as the others fill a frame
		31: {1, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 15},
		32: {2, 1, 15},
	} {
		for packet, want := range rests {
			if got := w.frameRest(uint32(packet), packets); got != want {
				t.Errorf("packet %d of %d: %d packets left in its frame, want %d", packet, packets, got, want)
			}
		}
	}
	if w.period != 30 { // two frames, of a window of 128
		t.Errorf("an acknowledgement every %d packets, want 30", w.period)
	}
	for _, c := range []struct{ left, room, want uint32 }{
		{256, 96, 93}, {256, 63, 63}, {256, 62, 48}, {96, 96, 96}, {256, 18, 18}, {256, 17, 17}, {256, 1, 1}, {7, 96, 7},
	} {
		if got := w.readPiece(c.left, c.room); got != c.want {
			t.Errorf("of %d packets of a READ with room for %d: requests %d, want %d", c.left, c.room, got, c.want)
		}
	}
	w.init(&Path{Window: 128, Batch: 1, Congestion: Conservation{}})
	if first, got := w.frameRest(0, 5), w.readPiece(256, 96); first != 2 || got != 96 {
		t.Errorf("without superframes: %d packets begin a message, %d are requested", first, got)
	}
	w.init(&Path{Window: 128, Batch: 1000, Congestion: Conservation{}}) // a frame is at most half of the window
	if w.batch != 64 {
		t.Errorf("%d packets a frame", w.batch)
	}
}
