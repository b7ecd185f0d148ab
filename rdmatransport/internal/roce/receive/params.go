package receive

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
)

// The tunables of receiving, in one place.
const (
	// HeaderRoom is what BTH, the largest extensions beside a payload (XRCETH, RETH and ImmDt) and the ICRC take of a
	// request packet.
	HeaderRoom = 12 + 4 + 16 + 4 + 4

	// sackEvery is how many packets behind gaps one selective acknowledgement is for. storeBytes is what the packets of
	// any span take. No more than MaxStores QPs of a device have packets behind a gap kept, 70 MB in all; the others'
	// peers go back.
	sackEvery  = 16
	storeBytes = 2*send.WindowBytes + send.MaxSpan*HeaderRoom
	MaxStores  = 64

	// lossMemory is how long packets behind a gap are kept after one was seen to be lost: before the first loss, and after
	// a while without, whoever makes up packets could fill the stores. keepLongest is how long they are kept while nothing
	// comes that was missing. distrust is how long none are kept after some were perhaps not the peer's.
	lossMemory  = time.Second
	keepLongest = time.Second
	distrust    = 10 * time.Second

	// maxReplays is how many repeated READs wait to be answered beside those that are new.
	maxReplays = 64

	// firstBurst is how many responses a READ of more than a window begins with, until it is known what the peer can take.
	firstBurst = 64

	// responsePause is between two bursts of READ responses, for others to run: READs have no acknowledgements that could
	// pace them.
	responsePause = 200 * time.Microsecond
)
