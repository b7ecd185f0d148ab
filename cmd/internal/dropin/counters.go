package dropin

import (
	"encoding/json"
	"errors"
	"os"

	"github.com/softrnic/softrnic/verbs"
)

// AppendCounters appends the sums of the devices' nonzero counters to a file, as one JSON object
// with the process ID.
func AppendCounters(file string, devices ...*verbs.Device) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	counters := map[string]uint64{"pid": uint64(os.Getpid())}
	for _, dev := range devices {
		all, err := dev.HWCounters() // includes the ports' counters
		if err != nil {
			return errors.Join(err, f.Close())
		}
		for name, v := range all {
			if v != 0 {
				counters[name] += v
			}
		}
	}
	line, _ := json.Marshal(counters) // never fails for a map of numbers
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}
