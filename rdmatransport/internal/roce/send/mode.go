package send

// Mode is what the requester is doing about what is in flight.
type Mode uint8

const (
	// InOrder: packets are sent in the order of their PSNs, and none that was sent is known to be
	// missing.
	InOrder Mode = iota
	// GoneBack: a sequence NAK of una, or an answer that implies one, had everything from una on
	// sent again. One loss makes many such NAKs, so no other counts until there is progress, or a
	// probe takes care of a second loss.
	GoneBack
	// Probing: una was sent again as a probe, and what follows it was sent before; the answer tells
	// whether that is lost.
	Probing
	// RNRWait: by an RNR NAK, the peer asked to wait before a PSN is sent again; only what comes
	// before that PSN is sent.
	RNRWait
	// Selective: something is missing, and a scoreboard tells what; no more than that is sent
	// again.
	Selective
	// Failed: nothing is sent any more.
	Failed

	modes = int(Failed) + 1
)

func (m Mode) String() string {
	return [...]string{"in order", "gone back", "probing", "RNR wait", "selective", "failed"}[m]
}

// modeEvent is what may change the mode.
type modeEvent uint8

const (
	onProgress  modeEvent = iota // una has moved
	onNAK                        // everything from una on is sent again, because of a sequence NAK
	onTimeout                    // the same, because of the retransmission timeout
	onProbe                      // una was sent as a probe, and more was sent before
	onProbeOver                  // the probe is answered, or was all there is
	onGap                        // something is missing that the peer can be asked for alone
	onRecovered                  // nothing is missing any more
	onRNR                        // an RNR NAK of una, or of a PSN behind answers that are missing
	onRNROver                    // its time is over, or the PSN turned out to have been executed
	onFailure                    // the QP has failed

	modeEvents = int(onFailure) + 1
)

// transitions is the mode behind each event. Where an event cannot occur or does not matter, the
// mode stays.
//
//	            progress  NAK      timeout  probe     over     gap       recovered RNR       RNR over failure
//	in order    stays     back     stays    probing   stays    selective stays     RNR wait  stays    failed
//	gone back   in order  stays    in order probing   in order selective stays     RNR wait  stays    failed
//	probing     stays     back     in order stays     in order selective stays     RNR wait  stays    failed
//	selective   stays     back     in order stays     stays    stays     in order  RNR wait  stays    failed
//	RNR wait    stays     stays    in order stays     stays    selective stays     stays     in order failed
//	failed      stays     stays    stays    stays     stays    stays     stays     stays     stays    stays
//
// An RNR NAK of a PSN behind what a scoreboard knows to be missing leaves the mode Selective: the
// wait is the alarm's then. In RNR wait there is no timeout and no probe: those alarms are set when
// the wait is over.
var transitions = [modes][modeEvents]Mode{
	InOrder:   {InOrder, GoneBack, InOrder, Probing, InOrder, Selective, InOrder, RNRWait, InOrder, Failed},
	GoneBack:  {InOrder, GoneBack, InOrder, Probing, InOrder, Selective, GoneBack, RNRWait, GoneBack, Failed},
	Probing:   {Probing, GoneBack, InOrder, Probing, InOrder, Selective, Probing, RNRWait, Probing, Failed},
	Selective: {Selective, GoneBack, InOrder, Selective, Selective, Selective, InOrder, RNRWait, Selective, Failed},
	RNRWait:   {RNRWait, RNRWait, InOrder, RNRWait, RNRWait, Selective, RNRWait, RNRWait, InOrder, Failed},
	Failed:    {Failed, Failed, Failed, Failed, Failed, Failed, Failed, Failed, Failed, Failed},
}

// mode is the present one.
type mode struct {
	now       Mode
	selective bool // the peer keeps what comes behind a gap and tells of it, by its last packet: Selective is of use
}

func (m *mode) init() { *m = mode{} }

func (m *mode) setPeer(selective bool) { m.selective = selective }

// on changes the mode as an event asks for.
func (m *mode) on(e modeEvent) { m.now = transitions[m.now][e] }

func (m *mode) is(now Mode) bool { return m.now == now }
