package node

import (
	"fmt"
	"strings"

	"github.com/softrnic/softrnic/verbs"
)

// Transport is the value of a flag that names a wire protocol.
type Transport struct{ verbs.Transport }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Transport) UnmarshalText(text []byte) error {
	for _, known := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		if strings.EqualFold(string(text), known.String()) {
			t.Transport = known
			return nil
		}
	}
	return fmt.Errorf("%q is not a wire protocol: must be rocev2 or iwarp", text)
}
