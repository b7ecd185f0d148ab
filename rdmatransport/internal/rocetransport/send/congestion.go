package send

import "time"

// CongestionController decides how the window opens and closes. Each method handles one event. It
// takes the current window, in packets, and returns the new one, which is then clamped. Methods are
// called once per acknowledgement or loss, not per packet.
type CongestionController interface {
	// Params returns the controller's parameters. It is called once.
	Params() Params
	// OnRoundTrip is called for each sampled round trip, several times per round trip, if Params
	// asks for samples.
	OnRoundTrip(window uint32, took, now time.Duration) uint32
	// Rate returns the pacing rate of a window in packets per second; 0 is no pacing.
	Rate(window uint32) float64
	// OnAck is called when acked more packets are acknowledged.
	OnAck(window, acked uint32) uint32
	// OnLoss is called when single packets are found lost, and will be retransmitted alone.
	OnLoss(window, lost uint32) uint32
	// OnGoBack is called when the peer has dropped everything after a gap, so that everything in
	// flight is retransmitted.
	OnGoBack(window uint32) uint32
	// OnTimeout is called after a retransmission timeout.
	OnTimeout(window uint32) uint32
	// OnTailLoss is called when the answer to a probe shows that all packets after it are missing.
	OnTailLoss(window uint32) uint32
}

// Params has the requirements of a controller.
type Params struct {
	InitialWindow uint32 // initial window in packets; 0 is the largest
	MinWindow     uint32 // smallest window in packets
	// Largest number of packets per acknowledgement request; 0 leaves it to the window.
	AckEvery   uint32
	MeasureRTT bool // sample round trips
}

// Conservation is the default controller, by the conservation of packets. Each lost packet makes
// the window smaller by one packet, and each acknowledged packet makes it larger by one. Going back
// halves it.
type Conservation struct{}

func (Conservation) Params() Params { return Params{MinWindow: MinWindow} }

func (Conservation) Rate(uint32) float64 { return 0 }

func (Conservation) OnRoundTrip(window uint32, _, _ time.Duration) uint32 { return window }

func (Conservation) OnAck(window, acked uint32) uint32 { return window + acked }

func (Conservation) OnLoss(window, lost uint32) uint32 { return window - min(lost, window) }

func (Conservation) OnGoBack(window uint32) uint32 { return window / 2 }

func (Conservation) OnTimeout(window uint32) uint32 { return window / 2 }

// OnTailLoss closes the window. The peer may only be slow, and answer packets from before the
// probe.
func (Conservation) OnTailLoss(uint32) uint32 { return MinWindow }
