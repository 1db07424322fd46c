"""The words of the demo corpus, written as a German dictionary prints them; slashes set off irregular English forms.

Nouns by sort: English, article, German, genitive, plural; a hyphen repeats the German word, mass nouns have no plural.
Verbs by valency: English, infinitive and, unless weak, third person, preterite and participle ("ist": the perfect takes
sein); a hyphen ends a separable prefix, an underscore precedes an English particle. In a valency, semicolons separate
frames, commas complements, + adjuncts; `for=auf+acc vehicle` is English "for", German "auf" with the accusative.
Determiners: English singular and plural, German, and a word with the same endings; a hyphen is no word.
"""

NOUNS = """
person | teacher der Lehrer -s -, doctor der Arzt -es Ärzte, student der Student -en -en, neighbour der Nachbar -n -n
person | man/men der Mann -es Männer, policeman/policemen der Polizist -en -en, waitress die Kellnerin - -nen
person | woman/women die Frau - -en, child/children das Kind -es -er, girl das Mädchen -s -, boy der Junge -n -n
person | mother die Mutter - Mütter, father der Vater -s Väter, daughter die Tochter - Töchter, son der Sohn -es Söhne
person | sister die Schwester - -n, brother der Bruder -s Brüder, friend der Freund -es -e, guest der Gast -es Gäste
animal | dog der Hund -es -e, cat die Katze - -n, horse das Pferd -es -e, bear der Bär -en -en, goat die Ziege - -n
text | book das Buch -es Bücher, letter der Brief -es -e, newspaper die Zeitung - -en, poem das Gedicht -es -e
text | novel der Roman -s -e, story die Geschichte - -n, song das Lied -es -er, recipe das Rezept -es -e
thing | cup die Tasse - -n, bowl die Schale - -n, spoon der Löffel -s -, knife/knives das Messer -s -
thing | ring der Ring -es -e, pot die Kanne - -n, key der Schlüssel -s -, bag die Tasche - -n, bottle die Flasche - -n
thing | box die Kiste - -n, gift das Geschenk -s -e, picture das Bild -es -er, suitcase der Koffer -s -
device | lamp die Lampe - -n, clock die Uhr - -en, radio/radios das Radio -s -s, computer der Computer -s -
clothing | coat der Mantel -s Mäntel, dress das Kleid -es -er, shoe der Schuh -s -e, hat der Hut -es Hüte
furniture | table der Tisch -es -e, chair der Stuhl -es Stühle, bed das Bett -es -en, cupboard der Schrank -es Schränke
opening | door die Tür - -en, window das Fenster -s -, gate das Tor -es -e
room | kitchen die Küche - -n, cellar der Keller -s -, office das Büro -s -s, room das Zimmer -s -, hall die Halle - -n
building | house das Haus -es Häuser, school die Schule - -n, hotel das Hotel -s -s, church die Kirche - -n
building | castle das Schloss -es Schlösser, museum das Museum -s Museen, shop der Laden -s Läden
area | garden der Garten -s Gärten, city die Stadt - Städte, village das Dorf -es Dörfer, forest der Wald -es Wälder
ground | street die Straße - -n, bridge die Brücke - -n, field das Feld -es -er, path der Weg -es -e
vehicle | car das Auto -s -s, train der Zug -es Züge, bus der Bus -ses -se, boat das Boot -es -e
food | soup die Suppe - -n, salad der Salat -s -e, cake der Kuchen -s -, egg das Ei -s -er, bread das Brot -es
drink | tea der Tee -s, coffee der Kaffee -s, milk die Milch -, juice der Saft -es, wine der Wein -es
plant | tree der Baum -es Bäume, flower die Blume - -n, rose die Rose - -n, bush der Busch -es Büsche
event | concert das Konzert -s -e, celebration die Feier - -n, exam die Prüfung - -en, game das Spiel -s -e
event | wedding die Hochzeit - -en, journey die Reise - -n, course der Kurs -es -e, lecture die Vorlesung - -en
"""
# Heads, which give a compound its gender and its plural, and modifiers with their linking form: Küchen + Stuhl.
COMPOUNDS = """
cake tree juice | apple Apfel, pear Birnen, cherry Kirsch, plum Pflaumen
soup salad | potato Kartoffel, tomato Tomaten, bean Bohnen, onion Zwiebel
table chair cupboard door window lamp clock | kitchen Küchen, garden Garten, office Büro, school Schul, hotel Hotel
door window key | cellar Keller, house Haus, church Kirchen, castle Schloss, shop Laden, museum Museums
bowl spoon box cup knife | wooden Holz, silver Silber, plastic Plastik
bridge gate table chair | wooden Holz, iron Eisen, stone Stein
coat dress shoe hat bag | summer Sommer, winter Winter, leather Leder
cup pot bottle | tea Tee, coffee Kaffee, milk Milch
teacher student course book exam lecture | music Musik, art Kunst, language Sprach, history Geschichts, sports Sport
street school church museum shop castle garden | village Dorf, city Stadt
path hotel village church street house | forest Wald, mountain Berg, island Insel
bus bag newspaper | school Schul, city Stadt, travel Reise
gift cake celebration song guest picture letter | birthday Geburtstags, wedding Hochzeits, Christmas Weihnachts
house hotel picture celebration journey doctor car boat garden | family Familien
story novel poem song | love Liebes, travel Reise, winter Winter
"""
ADJECTIVES = """
person | friendly freundlich, famous berühmt, rich reich, poor arm, clever klug, polite höflich, proud stolz, shy scheu
person animal | young jung, tired müde, strong stark, sick krank, hungry hungrig, curious neugierig, brave mutig
animal thing device clothing furniture opening room building area ground vehicle plant | small klein, big groß
animal thing clothing furniture opening vehicle plant | beautiful schön, white weiß, red rot, black schwarz, blue blau
text thing device clothing furniture vehicle | new neu, old alt, expensive teuer, heavy schwer, dirty schmutzig
opening room building area ground | quiet ruhig, dark dunkel, modern modern, narrow eng, bright hell, ugly hässlich
text event | long lang, short kurz, interesting interessant, boring langweilig, important wichtig, difficult schwierig
food drink | fresh frisch, cold kalt, delicious lecker, cheap billig, hot heiß, sweet süß, good gut
"""
VERBS = """
person: acc person +place | call an-rufen ruft rief gerufen, meet/met/met treffen trifft traf getroffen, greet begrüßen
person: acc person +place | invite ein-laden lädt lud geladen, visit besuchen, comfort trösten
person animal: acc person animal vehicle +place | see/saw/seen sehen sieht sah gesehen, watch beobachten
person: acc animal plant building | draw/drew/drawn zeichnen, photograph fotografieren, admire bewundern
person: acc thing text clothing food +with +place | buy/bought/bought kaufen
person: acc thing text clothing food +with +place | find/found/found finden findet fand gefunden
person: acc thing furniture food | sell/sold/sold verkaufen, throw_away/threw/thrown weg-werfen wirft warf geworfen
person: acc device +with +manner | repair reparieren, turn_on ein-schalten, turn_off aus-schalten
person: acc opening +manner | open öffnen, close schließen schließt schloss geschlossen, paint an-malen
person: acc room +manner | tidy_up auf-räumen, clean putzen, leave/left/left verlassen verlässt verließ verlassen
person: acc clothing | wash waschen wäscht wusch gewaschen, try_on an-probieren, hang_up/hung/hung auf-hängen
person: acc food +manner +place | eat/ate/eaten essen isst aß gegessen, cook kochen, fetch holen
person: acc drink +manner +place | drink/drank/drunk trinken trinkt trank getrunken
person: acc text +manner +place | write/wrote/written schreiben schreibt schrieb geschrieben, translate übersetzen
person: acc event +manner | prepare vor-bereiten, cancel/cancelled/cancelled ab-sagen, miss verpassen
person: dat person, acc thing food | give/gave/given geben gibt gab gegeben, send/sent/sent schicken, show zeigen
person: acc text event, to=+dat person | explain erklären, describe beschreiben beschreibt beschrieb beschrieben
person: dat person +place | thank danken, answer antworten, help helfen hilft half geholfen, follow folgen ist
person: to=+dat person +place | listen zu-hören
person: for=auf+acc person vehicle +place | wait warten
person: about=über+acc person event text +with +place | talk sprechen spricht sprach gesprochen, laugh lachen
person: with=mit+dat animal +place | play spielen
person: in=an+dat event | take_part/took/taken teil-nehmen nimmt nahm genommen
person: into=in+acc room building area +with; to=zu+dat building +with | go/went/gone gehen geht ging ist gegangen
person: to=zu+dat building; through=durch+acc area | drive/drove/driven fahren fährt fuhr ist gefahren
person: acc thing device furniture, into=in+acc room building | carry tragen trägt trug getragen
person: acc thing device furniture, into=in+acc room building | drag/dragged/dragged schleppen
person: +with +place | work arbeiten, dance tanzen, cry weinen
person animal: under=unter+dat plant furniture; +place | sleep/slept/slept schlafen schläft schlief geschlafen
person: +place | get_up/got/got auf-stehen steht stand ist gestanden, wake_up/woke/woken auf-wachen ist
person vehicle: in=in+dat area | arrive an-kommen kommt kam ist gekommen
person: in=in+dat building area | live wohnen, stay bleiben bleibt blieb ist geblieben
furniture device: in=in+dat room; next_to=neben+dat opening | stand/stood/stood stehen steht stand gestanden
thing device vehicle building: to=+dat person | belong gehören
plant: in=in+dat area; behind=hinter+dat building | grow/grew/grown wachsen wächst wuchs ist gewachsen, bloom blühen
person: that=dass | believe glauben, know/knew/known wissen weiß wusste gewusst, say/said/said sagen, notice bemerken
person: whether=ob; acc person, whether=ob | ask fragen
person: to= | try versuchen, begin/began/begun an-fangen fängt fing gefangen, plan/planned/planned planen
person: dat person, to= | promise versprechen verspricht versprach versprochen, allow erlauben
"""
ADJUNCTS = """
place | in=in+dat room building area, on=auf+dat ground, behind=hinter+dat building plant
with | with=mit+dat person, without=ohne+acc person, for=für+acc person
time | after=nach+dat event, before=vor+dat event, during=während+gen event, because_of=wegen+gen event
"""
WORDS = """
present | today=heute, now=jetzt, this week=diese Woche, this morning=heute Morgen
past | yesterday=gestern, last week=letzte Woche, last year=letztes Jahr, two days ago=vor zwei Tagen
future | tomorrow=morgen, next week=nächste Woche, soon=bald, in the evening=am Abend
manner | quickly=schnell, slowly=langsam, carefully=vorsichtig, secretly=heimlich, quietly=leise
frequency | often=oft, always=immer, sometimes=manchmal, never=nie, rarely=selten
present link | because=weil, although=obwohl, when=wenn, if=falls, before=bevor, in order to=um, but=aber
past link | because=weil, although=obwohl, when=als, while=während, before=bevor, in order to=um, but=aber
"""
DETERMINERS = """
definite | the the - der, the the - der, the the - der, the the - der, the the - der, this these dies dieser
definite | my my mein mein, his his sein mein, her her ihr mein, our our unser mein, their their ihr mein
singular | a - ein ein, a - ein ein, a - ein ein, a - ein ein, every - jed dieser, no no kein ein
plural | - two zwei zwei, - three drei zwei, - many viel viele, - several mehrer viele, - - - zwei, no no kein ein
mass | - - - zwei, - - - zwei, no no kein ein
"""
PRONOUNS = "he him er ihn ihm, she her sie sie ihr, they them sie sie ihnen, we us wir uns uns"
NAMES = ["Anna", "Peter", "Maria", "Paul", "Lena", "Martin", "Julia", "Simon", "Clara", "David", "Laura", "Oliver"]
