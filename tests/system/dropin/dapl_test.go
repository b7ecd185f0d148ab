//go:build linux && amd64

package dropin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// TestDAPL runs the programs of uDAPL, over its provider that connects by rdma_cm (cma) and the one
// that uses a TCP connection for it (scm). dtest, dtestsrq and dapltest -V check the data
// themselves.
func TestDAPL(t *testing.T) {
	gate.Long(t)
	needs(t, "/usr/bin/dtest", "dapl2-utils")
	const port = 15828 // if the server first sends information to the client over TCP
	for _, p := range []cmProgram{
		{server: "dtest -P cma -B 20 -b 100000", client: "dtest -P cma -B 20 -b 100000 -h SERVER", bytes: 20 * 100000, port: port},
		{server: "dtest -P cma -W -D -B 20 -b 100000", client: "dtest -P cma -W -D -B 20 -b 100000 -h SERVER", bytes: 20 * 100000,
			port: port},
		{server: "dtest -P scm -B 20 -b 100000", client: "dtest -P scm -B 20 -b 100000 -h 127.0.0.1", bytes: 20 * 100000, port: port,
			roceOnly: true},
		{server: "dtestsrq -P cma", client: "dtestsrq -P cma -h SERVER", bytes: 1000},
		{server: "dtestx -P cma", client: "dtestx -P cma -h SERVER", bytes: 100, port: port, roceOnly: true},
		{server: "dtestcm -P cma -c 100", client: "dtestcm -P cma -c 100 -h SERVER", connections: 100, port: port},
		{server: "dapltest -T S -D cma", endless: true, bytes: 4 * 100 * 8192,
			client: "dapltest -T T -D cma -s SERVER -i 100 -t 2 -w 2 -V client SR 1024 server SR 1024 client RW 8192 server RR 8192"},
	} {
		over := links
		if p.port != 0 && strings.Contains(p.client, "SERVER") {
			over = links[1:] // over TCP
		}
		for _, m := range mediaOf(over, &p) {
			t.Run(strings.Join([]string{m.link, m.transport, p.client}, " "), func(t *testing.T) {
				programs.Ran(t, p.client, fmt.Sprintf("%s (%s)", m.name(), m.called))
				p.runWith(t, m, registries(t, m))
			})
		}
	}
}

// registries returns what the two sides of a medium add to their environments, so that uDAPL finds
// their devices.
func registries(t *testing.T, m cmMedium) (env [2][]string) {
	t.Helper()
	dir := shared(t)
	for side, addr := range []string{m.server, m.client} {
		addr, _, _ = strings.Cut(addr, "/")
		file := filepath.Join(dir, fmt.Sprint("dat", side))
		text := fmt.Sprintf("cma u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"%s 0\" \"\"\nscm u2.0 nonthreadsafe default "+
			"libdaploscm.so.2 dapl.2.0 \"softrnic0 1\" \"\"\n", addr)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		env[side] = []string{"DAT_OVERRIDE=" + file, "DAPL_SCM_NETDEV=lo"}
	}
	return env
}
