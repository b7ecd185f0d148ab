//go:build linux && amd64

package dropin

import (
	"fmt"
	"os"
	"testing"
)

// TestFio runs fio's RDMA engine: RDMA WRITE, RDMA READ, and SEND, whose receiver checks the data of each block; fio itself has
// no check of the others. With SOFTRNIC_LONG 1 GiB, on each link and over both transports.
//
// fio gives up at the first SEND for which there is no receive request (its rnr_retry is 0), and posts receive requests again in
// its own time. So the server has one for each block from the start.
func TestFio(t *testing.T) {
	needs(t, "/usr/bin/fio", "fio")
	size, over, few := uint64(16<<20), links[:1], true
	if os.Getenv("SOFTRNIC_LONG") != "" {
		size, over, few = 1<<30, links, false
	}
	var programs []cmProgram
	for _, verb := range []string{"write", "read", "send"} {
		job := fmt.Sprintf("fio --name=%s --ioengine=rdma --thread=1 --port=18515 --bs=%d --size=%d", verb, size/64, size)
		server, client := " --rw=read --iodepth=64", fmt.Sprintf(" --rw=write --iodepth=16 --hostname=SERVER --verb=%s", verb)
		if verb == "send" {
			server, client = server+" --verify=crc32c", client+" --verify=crc32c --do_verify=0"
		}
		programs = append(programs, cmProgram{server: job + server, client: job + client, bytes: size, roceOnly: few})
	}
	runOver(t, over, programs)
}
