package query

import "github.com/prometheus/procfs"

// descends reports whether process pid is ancestor, or a descendant of it.
func descends(pid, ancestor int) bool {
	for pid > 1 && pid != ancestor {
		p, err := procfs.NewProc(pid)
		if err != nil {
			return false
		}
		s, err := p.Stat()
		if err != nil {
			return false
		}
		pid = s.PPID
	}
	return pid == ancestor
}
