package receive

import "time"

// The tunables of receiving, in one place.
const (
	// HeaderRoom is the size of the headers of the longest request packet that has a payload: BTH,
	// XRCETH, RETH, ImmDt and ICRC.
	HeaderRoom = 12 + 4 + 16 + 4 + 4

	// sackEvery is the number of kept packets between two selective acknowledgements. MaxStores is
	// the number of QPs of a device that may keep early packets. That takes up to 70 MB with
	// send.DefaultWindow and 2.2 GB with send.MaxWindow. The peers of all other QPs go back.
	sackEvery = 16
	MaxStores = 64

	// lossPeriod is the time after a loss for which early packets are kept. Without this condition,
	// forged packets could fill the stores. keepTimeout is the time for which packets are kept while
	// none of the missing ones arrives. suspectPeriod is the time for which no packets are kept after
	// some that may have been forged.
	lossPeriod    = time.Second
	keepTimeout   = time.Second
	suspectPeriod = 10 * time.Second

	// maxReplays is the number of repeated READs that may be queued beside new ones.
	maxReplays = 64

	// firstBurst is the number of responses that a READ of more than a window begins with, until
	// the peer's rate is known.
	firstBurst = 64

	// responsePause is the pause between two bursts of READ responses, in which other goroutines
	// run. Responses are not acknowledged, so nothing else paces them.
	responsePause = 200 * time.Microsecond
)
