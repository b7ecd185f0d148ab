package send

import "time"

// CongestionController is the rules by which the window opens and closes. Each method is told of
// one event and given the window as it is, in packets; it returns what the window is to be, which
// is then held between its bounds. A controller is called for an acknowledgement or a loss, not for
// a packet.
type CongestionController interface {
	// Terms is what the controller wants besides. It is asked once.
	Params() Params
	// OnRoundTrip is called for each round trip that is measured, with how long it took and the
	// time, if Terms asks for that: in one round trip several times.
	OnRoundTrip(window uint32, took, now time.Duration) uint32
	// Rate is how many packets a second a window is sent at; 0 leaves them to go at once.
	Rate(window uint32) float64
	// OnAck is called when acked more packets are acknowledged.
	OnAck(window, acked uint32) uint32
	// OnLoss is called when lost packets are found missing one by one, and will be repeated one by
	// one.
	OnLoss(window, lost uint32) uint32
	// OnGoBack is called when the peer has dropped everything behind a gap, by a sequence NAK or an
	// answer that tells the same: all that is in flight is sent again.
	OnGoBack(window uint32) uint32
	// OnTimeout is called when nothing was heard for the whole retransmission timeout.
	OnTimeout(window uint32) uint32
	// OnTailLoss is called when the answer to a probe shows that all packets behind it are missing.
	OnTailLoss(window uint32) uint32
}

// Terms is what a controller wants.
type Params struct {
	InitialWindow uint32 // the window that a connection begins with, in packets; 0 is all that there may be
	MinWindow     uint32 // what it shrinks to
	AckEvery      uint32 // packets after which an acknowledgement is asked for at least; 0 leaves it to the window
	MeasureRTT    bool   // they are measured
}

// Conservation is the controller that QPs have, by the conservation of packets: the window becomes
// smaller by each packet that is lost, and larger by each that is acknowledged. Only what makes the
// requester go back halves it.
type Conservation struct{}

func (Conservation) Params() Params { return Params{MinWindow: MinWindow} }

func (Conservation) Rate(uint32) float64 { return 0 }

func (Conservation) OnRoundTrip(window uint32, _, _ time.Duration) uint32 { return window }

func (Conservation) OnAck(window, acked uint32) uint32 { return window + acked }

func (Conservation) OnLoss(window, lost uint32) uint32 { return window - min(lost, window) }

func (Conservation) OnGoBack(window uint32) uint32 { return window / 2 }

func (Conservation) OnTimeout(window uint32) uint32 { return window / 2 }

// OnTailLoss closes the window: the peer may only be slow, and answer what was sent before the
// probe after all.
func (Conservation) OnTailLoss(uint32) uint32 { return MinWindow }
