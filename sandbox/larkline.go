package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// LarklineID is the brand id of Larkline Air.
const LarklineID = "01M8F2XW4QK7Z3V9TB5RC0HARK"

// The permissions that Larkline Air knows.
const (
	scopeUpcoming = "flights:upcoming:read"
	scopeHistory  = "flights:history:read"
	scopeRebook   = "flights:rebook"
	scopeCancel   = "flights:cancel"
)

// Larkline is an airline with delegation. Every user has two flights ahead of
// start and two behind; rebooking and cancelling really change them.
func Larkline(start time.Time) Brand {
	air := &airline{start: start}
	return Brand{
		ID:          LarklineID,
		Name:        "Larkline Air",
		Description: "Larkline Air's agent: flight status for everybody, and your own trips once you allow it.",
		Skills: []Skill{
			{
				ID: "flight-status", Name: "Flight status",
				Description: "Says whether a flight runs to time.",
				Tags:        []string{"flight", "airline", "status", "delay", "gate"},
				Examples:    []string{"Is LK 204 on time?"},
			},
			{
				ID: "trips", Name: "Your trips",
				Description: "Lists, rebooks and cancels your flights, as far as you allow.",
				Tags:        []string{"trip", "booking", "rebook", "cancel"},
				Examples:    []string{"Show my upcoming flights", "Rebook me onto LK 318", "Cancel my next flight"},
			},
		},
		Scopes: []Scope{
			{scopeUpcoming, "View your upcoming flights"},
			{scopeHistory, "View your past flights"},
			{scopeRebook, "Rebook your flights"},
			{scopeCancel, "Cancel your flights"},
		},
		NotShared: []string{
			"Your password and how you sign in.",
			"Your payment cards.",
			"Your passport and contact details.",
		},
		Asks: []Ask{
			{scopeUpcoming, "Show my upcoming flights."},
			{scopeHistory, "Show my past flights."},
			{scopeRebook, "Rebook my next flight."},
			{scopeCancel, "Cancel my next flight."},
		},
		Closes:  "Goodbye.",
		Respond: air.respond,
	}
}

// airline is the little that Larkline Air knows: the rest is in its memory of a user.
type airline struct {
	start time.Time
}

type flight struct {
	number, from, to string
	departs          time.Duration // after midnight, UTC
}

type booking struct {
	ref       string
	flight    flight
	day       time.Time // midnight, UTC
	seat      string
	cancelled bool
}

func (b *booking) departs() time.Time { return b.day.Add(b.flight.departs) }

func (b *booking) String() string {
	state := "confirmed"
	if b.cancelled {
		state = "cancelled"
	}
	return fmt.Sprintf("%s: %s %s–%s, %s UTC, seat %s, %s", b.ref, b.flight.number, b.flight.from, b.flight.to,
		b.departs().Format("Mon 2 Jan 2006 15:04"), b.seat, state)
}

// timetable are the flights that run every day.
var timetable = []flight{
	{"LK 204", "Lisbon", "Oslo", 9*time.Hour + 40*time.Minute},
	{"LK 318", "Lisbon", "Oslo", 17*time.Hour + 5*time.Minute},
	{"LK 205", "Oslo", "Lisbon", 13*time.Hour + 30*time.Minute},
	{"LK 319", "Oslo", "Lisbon", 20*time.Hour + 15*time.Minute},
}

// findFlight finds a flight of the timetable by its number, or nil.
func findFlight(number string) *flight {
	for i := range timetable {
		if timetable[i].number == number {
			return &timetable[i]
		}
	}
	return nil
}

// bookings are a user's.
type bookings []*booking

// first are the bookings that a user has to begin with.
func (a *airline) first(user string) (mine bookings) {
	sum := sha256.Sum256([]byte(user))
	day := a.start.UTC().Truncate(24 * time.Hour)
	for i, b := range []booking{
		{flight: timetable[0], day: day.AddDate(0, -4, 0), seat: "7A"},
		{flight: timetable[2], day: day.AddDate(0, -4, 6), seat: "7C"},
		{flight: timetable[0], day: day.AddDate(0, 0, 9), seat: "14C"},
		{flight: timetable[2], day: day.AddDate(0, 0, 16), seat: "11F"},
	} {
		b.ref = "LK"
		for j := range 4 {
			b.ref += string(userCodeLetters[int(sum[4*i+j])%len(userCodeLetters)])
		}
		mine = append(mine, &b)
	}
	return mine
}

// remembered is a booking in the airline's memory of a user.
type remembered struct {
	Ref       string    `json:"ref"`
	Flight    string    `json:"flight"`
	Day       time.Time `json:"day"`
	Seat      string    `json:"seat"`
	Cancelled bool      `json:"cancelled"`
}

// recall returns the bookings of the user of a turn.
func (a *airline) recall(t Turn) (mine bookings, err error) {
	if t.Memory == nil {
		return a.first(t.User), nil
	}
	var list []remembered
	if err := json.Unmarshal(t.Memory, &list); err != nil {
		return nil, fmt.Errorf("the bookings of %s: %w", t.User, err)
	}
	for _, r := range list {
		f := findFlight(r.Flight)
		if f == nil {
			return nil, fmt.Errorf("the bookings of %s: no flight %q", t.User, r.Flight)
		}
		mine = append(mine, &booking{r.Ref, *f, r.Day, r.Seat, r.Cancelled})
	}
	return mine, nil
}

// memory is what recall reads.
func (mine bookings) memory() (jsontext.Value, error) {
	var list []remembered
	for _, b := range mine {
		list = append(list, remembered{b.ref, b.flight.number, b.day, b.seat, b.cancelled})
	}
	return json.Marshal(list)
}

func (mine bookings) upcoming(at time.Time) (ahead bookings) {
	for _, b := range mine {
		if b.departs().After(at) {
			ahead = append(ahead, b)
		}
	}
	slices.SortStableFunc(ahead, func(x, y *booking) int { return x.departs().Compare(y.departs()) })
	return ahead
}

var (
	saysBye      = regexp.MustCompile(`(?i)\b(goodbye|bye|close this conversation)\b`)
	saysCancel   = regexp.MustCompile(`(?i)\bcancel\b`)
	saysRebook   = regexp.MustCompile(`(?i)\b(rebook|reschedule|(change|move|switch)\b.*\b(flight|booking|trip))\b`)
	saysStatus   = regexp.MustCompile(`(?i)\b(status|on time|late|delayed|gate)\b`)
	saysHistory  = regexp.MustCompile(`(?i)\b(history|past|previous)\b`)
	saysUpcoming = regexp.MustCompile(`(?i)\b(upcoming|itinerary|(my|next) (\w+ )?(flights?|trips?|bookings?))\b`)
	flightNumber = regexp.MustCompile(`(?i)\b([a-z]{2}) ?(\d{2,4})\b`)
	bookingRef   = regexp.MustCompile(`\bLK[A-Z]{4}\b`)
)

// flightIn is the flight number in a text, as we write it, or "".
func flightIn(text string) string {
	m := flightNumber.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return strings.ToUpper(m[1]) + " " + m[2]
}

// respond answers by the words of the message: what changes something first.
func (a *airline) respond(_ context.Context, t Turn) (Reply, error) {
	number := flightIn(t.Text)
	var act func(bookings, Turn) Reply
	scope := ""
	switch {
	case saysCancel.MatchString(t.Text):
		act, scope = bookings.cancel, scopeCancel
	case saysRebook.MatchString(t.Text):
		act, scope = bookings.rebook, scopeRebook
	case saysBye.MatchString(t.Text):
		return Reply{Text: "Goodbye, and have a good flight. This conversation is closed.", Close: true}, nil
	case saysStatus.MatchString(t.Text) && number != "":
		return status(number), nil
	case saysHistory.MatchString(t.Text):
		act, scope = bookings.history, scopeHistory
	case saysUpcoming.MatchString(t.Text):
		act, scope = bookings.list, scopeUpcoming
	default:
		return help(), nil
	}
	if !t.Allowed(scope) {
		return Reply{Missing: []string{scope}}, nil
	}
	mine, err := a.recall(t)
	if err != nil {
		return Reply{}, err
	}
	reply := act(mine, t)
	reply.Used = []string{scope}
	reply.Memory, err = mine.memory()
	return reply, err
}

func help() Reply {
	return Reply{Text: "This is Larkline Air. Ask whether a flight is on time, or about your upcoming or past flights; you can also rebook or cancel one. For anything of yours I ask for your permission first."}
}

func status(number string) Reply {
	f := findFlight(number)
	if f == nil {
		return Reply{Text: number + " is not one of our flights.", Actions: []Action{action("flight_status", map[string]string{"flight": number})}}
	}
	return Reply{
		Text:    fmt.Sprintf("%s %s–%s leaves at %s UTC today and runs to time.", f.number, f.from, f.to, timeOfDay(f.departs)),
		Actions: []Action{action("flight_status", map[string]string{"flight": number})},
	}
}

func (mine bookings) list(t Turn) Reply {
	return Reply{
		Text:    listing("You have %d upcoming flights:", mine.upcoming(t.At)),
		Actions: []Action{action("list_upcoming_trips", nil)},
	}
}

func (mine bookings) history(t Turn) Reply {
	var past bookings
	for _, b := range mine {
		if !b.departs().After(t.At) {
			past = append(past, b)
		}
	}
	return Reply{Text: listing("You flew with us %d times:", past), Actions: []Action{action("list_past_trips", nil)}}
}

func (mine bookings) rebook(t Turn) Reply {
	b := mine.choose(t)
	if b == nil {
		return Reply{Text: "I find no upcoming flight of yours to rebook."}
	}
	if b.cancelled {
		return Reply{Text: "It was cancelled, so it cannot be rebooked. " + b.String() + "."}
	}
	number := flightIn(t.Text)
	onto := findFlight(number)
	if number == "" { // the other one that day
		for i, f := range timetable {
			if f.from == b.flight.from && f.number != b.flight.number {
				onto = &timetable[i]
			}
		}
	}
	if onto == nil || onto.from != b.flight.from || onto.to != b.flight.to {
		return Reply{Text: fmt.Sprintf("%s does not fly %s–%s, so booking %s stays as it is.", number, b.flight.from, b.flight.to, b.ref)}
	}
	if onto.number == b.flight.number {
		return Reply{Text: "Nothing to do: you are already on it. " + b.String() + "."}
	}
	b.flight = *onto
	return Reply{
		Text:    "Rebooked. " + b.String() + ".",
		Actions: []Action{action("rebook_flight", map[string]string{"booking": b.ref, "flight": onto.number})},
	}
}

func (mine bookings) cancel(t Turn) Reply {
	b := mine.choose(t)
	if b == nil {
		return Reply{Text: "I find no upcoming flight of yours to cancel."}
	}
	if b.cancelled {
		return Reply{Text: "Nothing to do: it was cancelled before. " + b.String() + "."}
	}
	b.cancelled = true
	return Reply{
		Text:    "Cancelled. " + b.String() + ".",
		Actions: []Action{action("cancel_booking", map[string]string{"booking": b.ref})},
	}
}

// choose is the upcoming booking that the text names by its reference; without
// one, the next that is not cancelled.
func (mine bookings) choose(t Turn) *booking {
	ref := bookingRef.FindString(t.Text)
	for _, b := range mine.upcoming(t.At) {
		if b.ref == ref || ref == "" && !b.cancelled {
			return b
		}
	}
	return nil
}

func listing(heading string, list bookings) string {
	lines := []string{fmt.Sprintf(heading, len(list))}
	for _, b := range list {
		lines = append(lines, "- "+b.String())
	}
	return strings.Join(lines, "\n")
}

func timeOfDay(d time.Duration) string { return time.Time{}.Add(d).Format("15:04") }

// action names a tool that ran. The hash is of the arguments as JSON with sorted
// members.
func action(tool string, args map[string]string) Action {
	if args == nil {
		return Action{Tool: tool}
	}
	canonical, _ := json.Marshal(args, json.Deterministic(true)) // strings encode
	sum := sha256.Sum256(canonical)
	return Action{Tool: tool, ArgsHash: "sha256:" + hex.EncodeToString(sum[:])}
}
