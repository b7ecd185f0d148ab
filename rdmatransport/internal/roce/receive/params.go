package receive

import "time"

// The tunables of receiving, in one place.
const (
	// HeaderRoom is what BTH, the largest extensions beside a payload (XRCETH, RETH and ImmDt) and
	// the ICRC take of a request packet.
	HeaderRoom = 12 + 4 + 16 + 4 + 4

	// sackEvery is how many packets are kept behind gaps between two selective acknowledgements. At
	// most MaxStores QPs of a device keep packets behind a gap, which with send.DefaultWindow takes
	// 70 MB, and with send.MaxWindow 2.2 GB; the peers of the others go back.
	sackEvery = 16
	MaxStores = 64

	// lossMemory is how long after a loss packets behind a gap are kept. Without that condition,
	// anybody who makes up packets could fill the stores. keepLongest is how long packets are kept
	// while nothing arrives of what is missing. distrust is how long none are kept after some that
	// were perhaps not the peer's.
	lossMemory  = time.Second
	keepLongest = time.Second
	distrust    = 10 * time.Second

	// maxReplays is how many repeated READs wait to be answered beside those that are new.
	maxReplays = 64

	// firstBurst is how many responses a READ of more than a window begins with, until it is known
	// what the peer can take.
	firstBurst = 64

	// responsePause is the pause between two bursts of READ responses, in which others can run: the
	// responses are not acknowledged, so that nothing else paces them.
	responsePause = 200 * time.Microsecond
)
