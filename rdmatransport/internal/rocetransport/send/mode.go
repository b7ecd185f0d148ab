package send

// Mode is the mode of retransmission.
type Mode uint8

const (
	// InOrder: packets are sent in the order of their PSNs, and none is known to be missing.
	InOrder Mode = iota
	// GoneBack: everything from una on is retransmitted because of a sequence NAK, explicit or
	// implied. One loss causes many such NAKs, so further ones are ignored until una advances. A
	// probe finds a second loss.
	GoneBack
	// Probing: una was retransmitted as a probe. Later packets were sent before, and the response
	// shows whether they are lost.
	Probing
	// RNRWait: an RNR NAK asked to wait before a PSN is sent again. Only packets before that PSN
	// are sent.
	RNRWait
	// Selective: packets are missing, and a scoreboard tracks which. Only these are retransmitted.
	Selective
	// Failed: nothing is sent.
	Failed

	modes = int(Failed) + 1
)

func (m Mode) String() string {
	return [...]string{"in order", "gone back", "probing", "RNR wait", "selective", "failed"}[m]
}

// modeEvent is an event that may change the mode.
type modeEvent uint8

const (
	onProgress  modeEvent = iota // una has advanced
	onNAK                        // everything from una on is retransmitted after a sequence NAK
	onTimeout                    // the same after a retransmission timeout
	onProbe                      // una was sent as a probe, with later packets sent before
	onProbeOver                  // the probe is answered, or was the only packet in flight
	onGap                        // a packet is missing, and the peer keeps those after it
	onRecovered                  // nothing is missing any more
	onRNR                        // an RNR NAK of una, or of a PSN after missing responses
	onRNROver                    // the wait is over, or the peer has executed the PSN
	onFailure                    // the QP has failed

	modeEvents = int(onFailure) + 1
)

// transitions is the mode after each event. The mode stays if an event cannot occur or does not
// matter.
//
//	            progress  NAK      timeout  probe     over     gap       recovered RNR       RNR over failure
//	in order    stays     back     stays    probing   stays    selective stays     RNR wait  stays    failed
//	gone back   in order  stays    in order probing   in order selective stays     RNR wait  stays    failed
//	probing     stays     back     in order stays     in order selective stays     RNR wait  stays    failed
//	selective   stays     back     in order stays     stays    stays     in order  RNR wait  stays    failed
//	RNR wait    stays     stays    in order stays     stays    selective stays     stays     in order failed
//	failed      stays     stays    stays    stays     stays    stays     stays     stays     stays    stays
//
// If PSNs before the PSN of an RNR NAK are missing, the mode stays Selective. The wait then ends
// with the alarm, or with an acknowledgement that covers the PSN. There is no timeout and no probe
// in RNRWait: these alarms are set after the wait.
var transitions = [modes][modeEvents]Mode{
	InOrder:   {InOrder, GoneBack, InOrder, Probing, InOrder, Selective, InOrder, RNRWait, InOrder, Failed},
	GoneBack:  {InOrder, GoneBack, InOrder, Probing, InOrder, Selective, GoneBack, RNRWait, GoneBack, Failed},
	Probing:   {Probing, GoneBack, InOrder, Probing, InOrder, Selective, Probing, RNRWait, Probing, Failed},
	Selective: {Selective, GoneBack, InOrder, Selective, Selective, Selective, InOrder, RNRWait, Selective, Failed},
	RNRWait:   {RNRWait, RNRWait, InOrder, RNRWait, RNRWait, Selective, RNRWait, RNRWait, InOrder, Failed},
	Failed:    {Failed, Failed, Failed, Failed, Failed, Failed, Failed, Failed, Failed, Failed},
}

// mode is the current mode.
type mode struct {
	now       Mode
	selective bool // the peer keeps packets after a gap and reports them, as its last packet showed
}

func (m *mode) init() { *m = mode{} }

func (m *mode) setPeer(selective bool) { m.selective = selective }

// on applies an event.
func (m *mode) on(e modeEvent) { m.now = transitions[m.now][e] }

func (m *mode) is(now Mode) bool { return m.now == now }
