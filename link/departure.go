package link

// Departures is a link whose medium reports that another host has left it, even if that host's
// process was killed. A wrapper that holds frames calls later, after the last of them.
type Departures interface {
	// WatchDepartures sets the function to call with the Ethernet address of a host that has
	// left. The call comes after all frames of that host have been received. Calls do not
	// overlap. Once WatchDepartures has returned, the previous function is not called any more.
	// Nil ends the calls.
	WatchDepartures(f func(mac [6]byte))
}

// WatchDepartures sets the function to call with each host that leaves the medium of a link, if the
// link is a Departures.
func WatchDepartures(l Link, f func(mac [6]byte)) {
	if d, ok := l.(Departures); ok {
		d.WatchDepartures(f)
	}
}
